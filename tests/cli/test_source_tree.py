"""`hud` runs from a source tree on PYTHONPATH, without installed metadata of openhud."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def packages(tmp_path) -> Path:
    """Folder with everything that is installed but openhud."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for place in dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")):
        for path in Path(place).iterdir():
            if "openhud" not in path.name and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("version",), "openhud 0.1.0"),
        (("benchmarks", "list"), "sheetbench-50"),
        (("eval", "examples/arithmetic.py", "examples/arithmetic_agent.py", "--all"), "1.000"),
    ],
)
def test_a_command_runs_without_installed_metadata(tmp_path, packages, arguments, printed):
    where = {
        "PYTHONPATH": ":".join(map(str, [*(ROOT / "packages").iterdir(), packages])),
        "HUD_HOME": str(tmp_path / "home"),
        "HUD_API_URL": "",
    }
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hud.cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
