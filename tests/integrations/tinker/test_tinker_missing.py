"""A model on a Tinker service, where the service's client is not installed."""

from importlib.util import find_spec

import pytest

from hud.cli.main import run

pytestmark = pytest.mark.skipif(find_spec("tinker") is not None, reason="tinker is installed")


def test_the_backend_names_the_package_that_it_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.json").write_text('[{"env": "e", "id": "t", "args": {}}]')
    assert run(["train", "base", "tasks.json", "--backend", "tinker"]) == 2
    assert "pip install tinker" in capsys.readouterr().err
