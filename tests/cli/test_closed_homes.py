"""A HUD_HOME of another user of the machine: each command names the place and what to do."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from hud.cli.main import report

UNPRIVILEGED = []
"""Root without the right to pass the permissions of files."""
if os.geteuid() == 0:
    taken = "--bounding-set=-dac_override,-dac_read_search"
    UNPRIVILEGED = ["setpriv", taken, "--inh-caps=-all"]

pytestmark = pytest.mark.skipif(
    bool(UNPRIVILEGED) and shutil.which("setpriv") is None, reason="needs setpriv (util-linux)"
)


def hud(folder, home, *arguments):
    done = subprocess.run(
        [*UNPRIVILEGED, sys.executable, "-m", "hud.cli.main", *arguments],
        env={**os.environ, "HUD_HOME": str(home), "HUD_API_URL": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [("jobs",), ("up", "--port", "0")])
@pytest.mark.parametrize("closed", ["home", "parent"])
def test_a_home_that_is_closed_is_named(tmp_path, closed, command):
    folder = tmp_path / "parent"
    home = folder / "home"
    home.mkdir(parents=True)
    (home / ".env").write_text("A=1\n")
    shut = home if closed == "home" else folder
    shut.chmod(0)
    try:
        status, said = hud(tmp_path, home, *command)
    finally:
        shut.chmod(0o700)
    assert status == 2, said
    assert str(home) in said
    assert "HUD_HOME" in said
    assert "not an error we expected" not in said


def test_a_file_that_may_not_be_read_is_an_expected_error(capsys):
    closed = PermissionError(errno.EACCES, "Permission denied", "/home/x/.hud/models")
    assert report(closed, ["models", "list"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: /home/x/.hud/models cannot be used: Permission denied. Let this")
    assert "not an error we expected" not in said
