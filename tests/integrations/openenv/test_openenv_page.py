"""docs/integrations/openenv.md runs as it is written."""

import socket

import pytest

pytest.importorskip("openenv", reason="scripts/setup-integration openenv")

from tests.docs.stage import Scene
from tests.integrations.page import run_page

BESIDE = (
    'python -m uvicorn {app}:app --port {port} >"$STAGE/{app}.log" 2>&1 & echo $! >>"$STAGE/pids"; '
    "until curl -sf http://127.0.0.1:{port}/health >/dev/null; do sleep 0.2; done"
)


def free_ports(number):
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (one, other)][:number]


async def test_every_block_of_the_page_runs(tmp_path):
    guess, letters = free_ports(2)
    servers = {("guess_server", 8765): guess, ("letters_server", 8766): letters}
    stands = {}
    for (app, port), free in servers.items():
        stands[f"uvicorn {app}:app --port {port}"] = BESIDE.format(app=app, port=free)
        stands[str(port)] = str(free)
    await run_page("openenv", tmp_path, Scene(stands=stands))
