"""Router replay is an option of models with experts that this platform samples."""

import pytest
from tests.engine.published_families import published
from tests.platform.training.test_sessions import home, make, platform  # noqa: F401

from hud.client import connect
from hud.errors import UsageError


async def test_a_model_without_experts_is_refused(home):  # noqa: F811
    with pytest.raises(UsageError, match="for models with experts; this one has no router"):
        await make(router_replay=True)


@pytest.mark.slow
async def test_servers_do_not_sample_a_model_with_router_replay(home, tmp_path):  # noqa: F811
    folder = published("qwen3_moe", tmp_path / "base")
    body = {"source": str(folder), "name": "m", "config": {"router_replay": True}}
    await connect().post("/v2/models/add", body)
    servers = {"servers": {"kind": "vllm", "urls": ["http://127.0.0.1:1"]}}
    with pytest.raises(UsageError, match="--router-replay, which vLLM servers do not support"):
        await connect().put("/v2/models/m/servers", servers)
