"""What a server has acknowledged survives kill -9 in the middle of taking telemetry over."""

import threading
import time

import httpx
import pytest
from tests.fleet.live_server import LiveServer
from tests.platform.store.test_telemetry import agent_step, span

from hud.trace import new_id


@pytest.fixture
def server(tmp_path):
    made = LiveServer(tmp_path / "home", "--workers", "0")
    made.start()
    yield made
    made.stop()


@pytest.mark.slow
def test_acknowledged_spans_survive_kill_9(server):
    acknowledged: dict[str, int] = {}
    over = threading.Event()

    def send():
        trace, number = new_id(), 0
        with httpx.Client(base_url=server.url, timeout=10) as api:
            headers = {"authorization": f"Bearer {server.key}"}
            while not over.is_set():
                spans = [span(agent_step(number + place)) for place in range(1, 11)]
                try:
                    answer = api.post(
                        f"/v3/api/trace/{trace}/telemetry-upload",
                        json={"telemetry": spans},
                        headers=headers,
                    )
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    number += 10
                    acknowledged[trace] = number

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    time.sleep(1.5)
    server.kill()
    over.set()
    for sender in senders:
        sender.join()
    assert sum(acknowledged.values()) > 100
    server.start()
    with server.client() as api:
        for trace, number in acknowledged.items():
            steps = api.get(f"/v2/trace/{trace}/full").json()["trace"]["steps"]
            # What was on its way may be there too; what was acknowledged must be.
            assert [step["step_id"] for step in steps][:number] == list(range(1, number + 1))
            assert all(step["sample"]["output_token_ids"] == [4, 5] for step in steps[:number])
