"""Adapters of one base share a process and its weights there, and are trained each for itself."""

import pytest
from tests.platform.serving.engine_server import SIZES, TEXTS, drawn, engine_of, request
from tests.platform.serving.test_serving_training import a_pass, a_step, ask

from hud_platform.models.records import ModelConfig
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.timeout(180)

LORA = ModelConfig(training="lora", lora_rank=4)


def forks(platform):
    """Return three models: a LoRA one, a fork of it, and one whose weights are trained whole."""
    registry = platform.registry.of(LOCAL_TEAM)
    registry.create("base", TEXTS, sizes=SIZES)
    whole = registry.model("base")
    one = registry.fork("base", "one", config=LORA)
    return one, registry.fork("one", "other"), whole


async def test_forks_share_the_base_s_weights(tmp_path):
    async with engine_of(tmp_path, "inline", "m") as (platform, _):
        one, other, whole = forks(platform)
        policies = [platform.policies.policy(model, None) for model in (one, other, whole)]
        held = [
            {parameter.data_ptr() for parameter in policy.decoder.parameters()}
            for policy in policies
        ]
        assert len(held[0] & held[1]) == len(held[2])
        assert not held[0] & held[2], "weights that are trained are nobody else's"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inline", "worker"])
async def test_each_is_trained_for_itself(tmp_path, kind):
    async with engine_of(tmp_path, kind, "m") as (platform, _):
        engine = platform.engine
        one, other, _ = forks(platform)
        asked = request(seed=1)
        before = await drawn(engine, one, asked), await drawn(engine, other, asked)
        assert before[0][0] == before[1][0]
        await ask(engine, one, a_pass())
        stepped = await ask(engine, one, a_step())
        one = platform.registry.model(one.id)
        after = await drawn(engine, one, asked), await drawn(engine, other, asked)
        assert after[0][3].version == stepped["checkpoint_id"]
        assert after[0][1] != before[0][1]
        assert (after[1][0], after[1][3].version) == (before[1][0], None)
        assert after[1][1] == pytest.approx(before[1][1], abs=1e-5)


async def test_forks_are_where_their_base_is_and_others_elsewhere(tmp_path):
    async with engine_of(tmp_path, "worker", "m") as (platform, _):
        one, other, whole = forks(platform)
        engine = platform.engine
        assert engine.engine_of(one) is engine.engine_of(other)
        assert engine.engine_of(whole) is not engine.engine_of(one)
