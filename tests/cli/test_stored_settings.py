"""`hud set` stores settings; one with no meaning is refused, and a stored one can be replaced."""

import pytest

from hud import settings
from hud.cli.main import run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    return tmp_path


@pytest.mark.parametrize("address", ["localhost:8000", "banana", "http://", "ftp://host"])
def test_an_address_without_a_host_or_scheme_is_refused(address, home, capsys):
    assert run(["set", f"HUD_API_URL={address}"]) == 2
    assert "HUD_API_URL is" in capsys.readouterr().err
    assert not (home / ".env").exists()


def test_a_wrong_value_that_is_stored_can_be_replaced(home):
    (home / ".env").write_text("HUD_API_URL=banana\n")
    assert run(["jobs"]) == 2
    assert run(["set", "HUD_API_URL=https://hud.example:8000"]) == 0
    assert settings.load().api_url == "https://hud.example:8000"
