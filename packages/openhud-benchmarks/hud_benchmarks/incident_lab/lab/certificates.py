"""The shop's own certificate authority, and the certificates that its services serve with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """A certificate on disk."""

    name: str
    serial: str
    not_before: datetime
    not_after: datetime
    file: Path
    key: Path


class Authority:
    """Signs certificates for `localhost`; `file` is what clients trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop internal CA")])
        builder = self._builder(self.name, self.key, timedelta(days=-30), timedelta(days=900))
        signed = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            self.key, hashes.SHA256()
        )
        self.file = folder / "ca.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, service: str, start: timedelta, end: timedelta) -> Certificate:
        """Return a certificate for a service, valid from `start` to `end`, counted from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{service}.shop.internal")])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(service)])
        signed = (
            self._builder(subject, key, start, end)
            .add_extension(names, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        serial = f"{signed.serial_number:040x}"[-16:]
        file, secret = (
            self.folder / f"{service}-{serial}.pem",
            self.folder / f"{service}-{serial}.key",
        )
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Certificate(
            service, serial, signed.not_valid_before_utc, signed.not_valid_after_utc, file, secret
        )

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        start: timedelta,
        end: timedelta,
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + start)
            .not_valid_after(now + end)
        )
