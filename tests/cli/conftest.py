"""Fixtures of tests that run the command line in this process."""

import pytest

from hud.cli.main import run
from hud.client import disconnect


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty HUD_HOME in the working folder of the test, without a server."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield folder
    disconnect(folder)


@pytest.fixture
def hud_models(home, capsys):
    """`hud models` with arguments and the expected exit code; returns what it printed."""

    def call(*arguments, code=0):
        capsys.readouterr()
        assert run(["models", *arguments]) == code
        return capsys.readouterr()

    return call
