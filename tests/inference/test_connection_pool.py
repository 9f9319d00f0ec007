"""Connections of models: what a new model costs."""

import certifi
import httpx
import pytest

from hud.inference.connection_pool import Lanes


@pytest.fixture
def made(monkeypatch):
    """The TLS contexts that are made."""
    found, create = [], httpx.create_ssl_context

    def noted(*arguments, **options):
        found.append(create(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", noted)
    return found


def test_models_share_the_certificates_that_were_read(made):
    for _ in range(50):
        Lanes()
    assert len(made) <= 1


def test_other_certificates_make_another_context(made, monkeypatch, tmp_path):
    Lanes()
    own = tmp_path / "own.pem"
    with open(certifi.where()) as known:
        first = known.read().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    own.write_text(first[first.index("-----BEGIN") :])
    before = len(made)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    Lanes()
    assert len(made) == before + 1
    assert made[-1].cert_store_stats()["x509"] == 1
