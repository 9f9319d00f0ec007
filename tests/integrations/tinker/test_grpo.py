"""A GRPO loop written against Tinker's client alone learns on `hud up`."""

import importlib.util
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

from tests.integrations.tinker.server import started

EXAMPLE = Path(__file__).parents[3] / "examples" / "tinker_grpo.py"


@pytest.mark.timeout(300)
def test_the_example_raises_the_reward(tmp_path, monkeypatch):
    server = started(tmp_path / "home")
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", f"tml-{server.key}")
    spec = importlib.util.spec_from_file_location("tinker_grpo", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    rewards = example.main("m")
    assert mean(rewards[-5:]) > mean(rewards[:5]) + 0.3
    with server.client() as api:
        models = api.get("/v2/models").json()["items"]
        (trained,) = [one for one in models if ":train:" in one["name"]]
        nodes = api.get(f"/v2/models/{trained['id']}/checkpoints").json()
    assert nodes[-1]["is_active"]
    assert nodes[-1]["step"] == example.STEPS
    assert server.stop() == 0
