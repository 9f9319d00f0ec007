"""The port `RoutePlug`: routes that join the platform by an entry point."""

import httpx
import pytest

from hud.errors import UsageError
from hud_platform.application import create_app
from hud_platform.plugs.route_plugs import route_plugs
from hud_platform.process.config import PlatformConfig
from hud_platform.store.tables import LOCAL_TEAM

CHESS = '''
from typing import Annotated

from fastapi import APIRouter

from hud_platform.process.background import Service
from hud_platform.dependencies import RUN, Team, service_part
from hud_platform.plugs.route_plugs import RoutePlug


class Games(Service):
    """Moves of every team, in memory."""

    def __init__(self, parts):
        self.moves, self.swept, self._stopping = [], 0, parts.stopping

    async def work(self):
        self.swept += 1
        await self._stopping.wait()


router = APIRouter(prefix="/chess/v1", dependencies=RUN)


@router.post("/moves/{move}")
async def play(games: Annotated[Games, service_part("chess")], team: Team, move: str) -> list[str]:
    games.moves.append(f"{team} {move}")
    return games.moves


plug = RoutePlug("/chess/v1", (router,), Games, key_prefix="chess-")
'''


async def test_a_stranger_s_routes_join_with_their_state_and_its_work(stranger, tmp_path):
    stranger("hud.routes", "chess", CHESS)
    app = create_app(PlatformConfig(tmp_path / "home", keys=True))
    parts = app.state.parts
    key = parts.keys.mint("k", LOCAL_TEAM, scopes=("run",))[1]
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://hud") as http,
    ):
        assert (await http.post("/chess/v1/moves/e4")).status_code == 401
        for name, value in (("x-api-key", f"chess-{key}"), ("authorization", f"Bearer {key}")):
            answer = await http.post("/chess/v1/moves/e4", headers={name: value})
            assert answer.status_code == 200, answer.text
        assert answer.json() == [f"{LOCAL_TEAM} e4"] * 2
        assert parts.service("chess").swept == 1
        assert (await http.get("/v2/models", headers={"x-api-key": f"go-{key}"})).status_code == 401


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CHESS.replace('RoutePlug("/chess', 'RoutePlug("/go'), r"/chess/v1/moves.*not below"),
        (CHESS.replace("/chess/v1", "/v2/models"), r"'/v2/models', below which the platform has"),
        (CHESS.replace("/chess/v1", "/api/v1"), r"'/api/v1', below which hud.routes 'tinker' has"),
        (CHESS.replace("/chess/v1", ""), r"not below its prefix ''"),
    ],
)
def test_a_prefix_is_one_plug_s_alone(stranger, tmp_path, code, said):
    stranger("hud.routes", "chess", code)
    with pytest.raises(UsageError, match=said):
        create_app(PlatformConfig(tmp_path / "home"))


def test_the_routes_of_this_distribution_follow_the_port():
    plugs = route_plugs()
    assert plugs["tinker"].prefix == "/api/v1"
