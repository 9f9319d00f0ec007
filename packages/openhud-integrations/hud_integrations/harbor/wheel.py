"""Wheel of the running package, for images of other machines: no index has a release to install."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import hud
from hud.errors import UsageError
from hud.plugs import own_entry_points

_CHECKOUT = Path(hud.__file__).parents[3]
_LEFT_OUT = {"__pycache__", "docs_pages", "docs_site"}
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Time of every file, so that equal packages are equal wheels and an image's layers stay cached."""
_WHEEL = "Wheel-Version: 1.0\nGenerator: openhud\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the file name of the package's wheel."""
    return f"openhud-{hud.__version__}-py3-none-any.whl"


def write_wheel(path: Path) -> None:
    """Write the package as a wheel: its files as they are, without the documentation's pages.

    Raises `UsageError` if its requirements are not to be found.
    """
    inner = f"openhud-{hud.__version__}.dist-info"
    record: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            archive.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)

        for package in _packages():
            for file in sorted(package.rglob("*")):
                inside = file.relative_to(package.parent)
                if file.is_file() and not _LEFT_OUT & set(inside.parts):
                    add(inside.as_posix(), file.read_bytes())
        add(f"{inner}/METADATA", _metadata().encode())
        add(f"{inner}/WHEEL", _WHEEL.encode())
        add(f"{inner}/entry_points.txt", _entry_points().encode())
        record.append(f"{inner}/RECORD,,\n")
        archive.writestr(zipfile.ZipInfo(f"{inner}/RECORD", _EARLIEST), "".join(record))


def _packages() -> list[Path]:
    """Return the folders of the distribution's packages: the core, and those of its entry points."""
    names = {point.module.partition(".")[0] for point in own_entry_points()}
    specs = [importlib.util.find_spec(name) for name in sorted({"hud", *names})]
    return [Path(spec.origin).parent for spec in specs if spec and spec.origin]


def _entry_points() -> str:
    lines = ["[console_scripts]", "hud = hud.cli.main:main"]
    points = [point for point in own_entry_points() if point.group != "console_scripts"]
    for group in dict.fromkeys(point.group for point in points):
        lines += [f"[{group}]"]
        lines += [f"{point.name} = {point.value}" for point in points if point.group == group]
    return "\n".join(lines) + "\n"


def _metadata() -> str:
    """Return the package's metadata: the installed one, else that of the source tree."""
    try:
        installed = metadata.distribution("openhud")
    except metadata.PackageNotFoundError:
        return _source_metadata()
    return _headers(installed.requires or [], installed.metadata.get_all("Provides-Extra") or [])


def _source_metadata() -> str:
    try:
        project = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            "The package's requirements are not to be found; install openhud, or use its source tree."
        ) from error
    extras = project["optional-dependencies"]
    requires = list(project["dependencies"])
    for extra, lines in extras.items():
        requires += [f'{line}; extra == "{extra}"' for line in lines]
    return _headers(requires, list(extras))


def _headers(requires: list[str], extras: list[str]) -> str:
    lines = ["Metadata-Version: 2.1", "Name: openhud", f"Version: {hud.__version__}"]
    lines += ["Requires-Python: >=3.11"]
    lines += [f"Provides-Extra: {extra}" for extra in extras]
    lines += [f"Requires-Dist: {line}" for line in requires]
    return "\n".join(lines) + "\n"
