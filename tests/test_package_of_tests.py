"""The package `tests` is the repository's own wherever its tests run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_an_installed_package_of_the_same_name_does_not_hide_it(tmp_path):
    """verl's wheel installs its own `tests`, and integrations are tested beside the real packages."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    code = "import tests.lasting_folders; print(tests.lasting_folders.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(ROOT / "tests/lasting_folders.py"), done.stderr
