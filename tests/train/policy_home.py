"""A home of its own with one tiny policy, `m`."""

from contextlib import asynccontextmanager

from hud.client import connect, disconnect


@asynccontextmanager
async def policy_home(tmp_path, monkeypatch, texts, sizes):
    """Make the home, and yield its folder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    await connect().post("/v2/models/create", {"name": "m", "texts": texts, "sizes": sizes})
    yield folder
    disconnect(folder)
