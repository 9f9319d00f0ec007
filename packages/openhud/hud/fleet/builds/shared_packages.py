"""Packages of this interpreter, shared with the virtual environment of a build."""

from __future__ import annotations

import re
import site
from importlib.metadata import distributions
from pathlib import Path

import hud

LINK = "openhud-server.pth"
INSTALLER = "openhud"
"""Content of a stand-in's INSTALLER file."""
_STAND_INS = {"hud": "0.6.21", "hud-python": "0.6.21", "openhud": hud.__version__}
"""Distributions that are there already, for packages which require them; the first two as HUD last released them."""


def share_ours(venv: Path, *, described: bool = False) -> None:
    """Let a virtual environment see the server's own packages, behind what it installs itself.

    pip counts them as installed. uv looks no further than the environment: with `described`, it finds them there.
    """
    ours = [str(Path(hud.__file__).parent.parent), *site.getsitepackages()]
    packages = next((venv / "lib").glob("python*")) / "site-packages"
    (packages / LINK).write_text("\n".join(ours) + "\n")
    for name, version in _STAND_INS.items():
        _stand_in(packages, name, version)
    for distribution in distributions(path=site.getsitepackages()) if described else ():
        if (
            distribution.metadata["Name"]
            and distribution.metadata["Name"].lower() not in _STAND_INS
        ):
            _stand_in(
                packages,
                distribution.metadata["Name"],
                distribution.version,
                distribution.read_text("entry_points.txt"),
            )


def _stand_in(packages: Path, name: str, version: str, entry_points: str | None = None) -> None:
    """Describe a distribution that lies elsewhere; an installer that wants another version may take it away."""
    folder = packages / f"{re.sub('[-.]+', '_', name)}-{version}.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "INSTALLER": f"{INSTALLER}\n",
    }
    if entry_points:
        files["entry_points.txt"] = entry_points
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    record = "".join(f"{folder.name}/{file},,\n" for file in (*files, "RECORD"))
    (folder / "RECORD").write_text(record, encoding="utf-8")
