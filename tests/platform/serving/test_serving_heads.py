"""Heads that move under load: no request is lost, and none is drawn from two checkpoints."""

import asyncio
import functools
import itertools

import pytest
from tests.platform.serving.engine_server import drawn, engine_of, request
from tests.platform.serving.test_serving_streams import until
from tests.platform.serving.test_serving_training import a_pass, a_step, ask

from hud.learning.training_calls import CloseRequest
from hud_platform.serving.calls import MoveHead
from hud_platform.serving.token_engine import TokenDelta

pytestmark = pytest.mark.timeout(120)

MOVES = 50


@pytest.mark.parametrize("kind", ["inline", pytest.param("worker", marks=pytest.mark.slow)])
@pytest.mark.parametrize("training", [True, False])
async def test_fifty_moves_under_load_lose_no_request_and_mix_nothing(tmp_path, kind, training):
    async with engine_of(tmp_path, kind) as (platform, model):
        engine = platform.engine
        greedy = {"temperature": 0, "prompt": (5, 6, 7, 8)}
        # What each checkpoint draws by itself.
        expected = {None: (await drawn(engine, model, request(40, **greedy)))[0]}
        for step in range(3):
            await ask(engine, model, a_pass(step))
            made = await ask(engine, model, a_step())
            head = platform.registry.model("m")
            expected[made["checkpoint_id"]] = (await drawn(engine, head, request(40, **greedy)))[0]
        assert len({tuple(ids) for ids in expected.values()}) == 4, (
            "each must be told from the others"
        )
        if not training:
            await engine.call(model, CloseRequest())
        moving, versions = True, []

        async def load(place):
            while moving:
                now = await asyncio.to_thread(platform.registry.model, "m")
                ids, begun = [], None
                async for item in engine.stream(
                    now, None, request(40, **greedy, tenant=str(place))
                ):
                    if isinstance(item, TokenDelta):
                        ids += item.token_ids
                        begun = item.version
                assert item.version == begun
                assert ids == expected[item.version]
                versions.append(item.version)

        async def served(checkpoint, since):
            return checkpoint in versions[since:]

        async def move():
            nonlocal moving
            try:
                for place, checkpoint in zip(range(MOVES), itertools.cycle(expected), strict=False):
                    await engine.call(platform.registry.model("m"), MoveHead(checkpoint=checkpoint))
                    # From now on it is what serves: a request that comes after the move is drawn from it.
                    head = await asyncio.to_thread(platform.registry.model, "m")
                    assert (await drawn(engine, head, request(4)))[3].version == checkpoint
                    if place % 5 == 0:  # Often faster than a turn is drawn, and sometimes not.
                        await until(functools.partial(served, checkpoint, len(versions)))
            finally:
                moving = False

        await asyncio.gather(move(), *(load(place) for place in range(24)))
        assert set(versions) == set(expected)
