"""What is accumulated belongs to the client that accumulated it: nobody else learns it, and nobody else is refused for it."""

import asyncio
import socket
import threading
from types import SimpleNamespace

import pytest
from tests.platform.serving.engine_server import SIZES, TEXTS, engine_of
from tests.platform.serving.test_serving_training import a_pass, a_step, ask, batch, killed

from hud.client import connect, disconnect
from hud.client.contributor import Contributor
from hud.errors import ConflictError
from hud.learning.training_calls import CloseRequest, HoldRequest, OpenRequest
from hud.processes.presence import process_started
from hud.train import TrainingClient
from hud_platform.leases import session_lease
from hud_platform.training.trained_model import TrainedModel

FIRST, SECOND = Contributor("first", "process 1 on box"), Contributor("second", "process 2 on box")


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield folder
    disconnect(folder)


async def make(*slugs):
    for slug in slugs:
        body = {"name": slug, "texts": TEXTS, "sizes": SIZES}
        await connect().post("/v2/models/create", body)


def weights(slug):
    platform = connect().embedded.parts
    policy = platform.policies.serving(platform.registry.model(slug)).policy
    return {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(bool((one[n] == other[n]).all()) for n in one)


@pytest.mark.slow
async def test_a_strangers_gradient_is_not_applied(home):
    await make("m", "alone")
    stranger, learner = TrainingClient("m"), TrainingClient("m")
    await stranger.forward_backward(batch(seed=7, size=4))
    await learner.forward_backward(batch())
    made = await learner.optim_step(learning_rate=1e-2)
    alone = TrainingClient("alone")
    await alone.forward_backward(batch())
    await alone.optim_step(learning_rate=1e-2)
    assert same(weights("m"), weights("alone"))
    node = next(one for one in await learner.checkpoints() if one.id == made.checkpoint_id)
    assert (node.num_traces, node.num_datums) == (2, 2)


@pytest.mark.slow
async def test_the_client_that_lost_its_gradient_is_told_once_and_by_whom(home):
    await make("m")
    first, second = TrainingClient("m"), TrainingClient("m")
    await first.forward_backward(batch())
    await second.forward_backward(batch(1))
    with pytest.raises(ConflictError, match=r"process \d+ on .*send the whole batch again"):
        await first.forward_backward(batch(2))
    # What the second has accumulated is untouched by the refusal.
    assert (await second.optim_step(learning_rate=1e-2)).step == 1
    await first.forward_backward(batch())
    assert (await first.optim_step(learning_rate=1e-2)).step == 2


async def test_a_step_applies_only_what_its_client_accumulated(home):
    await make("m")
    first, second = TrainingClient("m"), TrainingClient("m")
    await first.forward_backward(batch())
    with pytest.raises(ConflictError, match=r"belongs to process \d+"):
        await second.optim_step(learning_rate=1e-2)
    assert (await first.optim_step(learning_rate=1e-2)).step == 1


@pytest.mark.slow
async def test_discard_throws_away_on_purpose_and_says_what(home):
    await make("m", "alone")
    trainer = TrainingClient("m")
    assert await trainer.discard() is None
    await trainer.forward_backward(batch(seed=7, size=4))
    await trainer.forward_backward(batch(seed=8))
    dropped = await trainer.discard()
    assert (dropped.passes, dropped.runs) == (2, 6)
    assert "process " in dropped.client
    await trainer.step(batch(), learning_rate=1e-2)
    await TrainingClient("alone").step(batch(), learning_rate=1e-2)
    assert same(weights("m"), weights("alone"))


@pytest.mark.slow
async def test_whoever_discards_the_other_is_told(home):
    await make("m")
    first, second = TrainingClient("m"), TrainingClient("m")
    await first.forward_backward(batch())
    assert (await second.discard()).passes == 1
    with pytest.raises(ConflictError, match="send the whole batch again"):
        await first.optim_step(learning_rate=1e-2)


@pytest.mark.slow
async def test_moving_the_head_takes_a_gradient_away_and_its_client_is_told(home):
    await make("m")
    first, second = TrainingClient("m"), TrainingClient("m")
    await first.step(batch(), learning_rate=1e-2)
    await first.forward_backward(batch(1))
    await second.set_head("base")
    with pytest.raises(ConflictError, match="head was moved"):
        await first.optim_step(learning_rate=1e-2)
    # Who moves it himself knows.
    await first.forward_backward(batch(1))
    await first.set_head("base")
    await first.step(batch(1), learning_rate=1e-2)


async def test_clients_without_a_name_accumulate_and_step_as_ever(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0))
        await ask(engine, model, a_pass(1))
        made = await ask(engine, model, a_step())
        assert platform.registry.tree.get(made["checkpoint_id"]).num_datums == 4


async def test_the_same_key_of_another_client_is_another_pass(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0, "p"), FIRST)
        await ask(engine, model, a_pass(0, "p"), SECOND)
        made = await ask(engine, model, a_step("s"), SECOND)
        assert platform.registry.tree.get(made["checkpoint_id"]).num_datums == 2


async def test_a_batch_that_was_sent_for_a_step_already_taken_is_not_learned_again(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0), FIRST)
        made = await ask(engine, model, a_step("s"), FIRST)
        # A script that was killed before it heard the answer begins that step again.
        await ask(engine, model, a_pass(0), SECOND)
        assert await ask(engine, model, a_step("s"), SECOND) == made
        await ask(engine, model, a_pass(1), SECOND)
        made = await ask(engine, model, a_step("t"), SECOND)
        assert platform.registry.tree.get(made["checkpoint_id"]).num_datums == 2


@pytest.mark.slow
async def test_only_the_client_whose_gradient_died_with_the_engine_is_refused(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0), FIRST)
        await killed(engine, model)
        await ask(engine, model, a_pass(0), SECOND)
        assert (await ask(engine, model, a_step(), SECOND))["step"] == 1
        # It is told also after another death, and only once.
        await killed(engine, model)
        with pytest.raises(ConflictError, match="send the whole batch again"):
            await ask(engine, model, a_pass(1), FIRST)
        await ask(engine, model, a_pass(1), FIRST)
        assert (await ask(engine, model, a_step(), FIRST))["step"] == 2


async def test_a_run_has_the_session_to_itself_and_begins_with_nothing(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0), FIRST)
        opened = await ask(engine, model, OpenRequest(alone=True), SECOND)
        assert opened["discarded"]["passes"] == 1
        assert opened["discarded"]["client"] == FIRST.process
        with pytest.raises(ConflictError, match="process 2 on box"):
            await ask(engine, model, a_pass(0), FIRST)
        await ask(engine, model, a_pass(1), SECOND)
        made = await ask(engine, model, a_step(), SECOND)
        assert platform.registry.tree.get(made["checkpoint_id"]).num_datums == 2
        await ask(engine, model, CloseRequest(alone=True), SECOND)
        # It is the whole batch that it sends now; it was told in between that it could not.
        with pytest.raises(ConflictError, match="send the whole batch again"):
            await ask(engine, model, a_pass(0), FIRST)


async def test_a_training_run_that_is_gone_or_silent_holds_nobody_up(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(session_lease, "time", clock)
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        # On another machine: its signs of life keep it.
        await ask(engine, model, OpenRequest(alone=True), SECOND)
        clock.now += session_lease.LEASE_SECONDS
        assert await ask(engine, model, HoldRequest(), SECOND) == {"held": True}
        assert await ask(engine, model, HoldRequest(), FIRST) == {"held": False}
        clock.now += session_lease.LEASE_SECONDS
        with pytest.raises(ConflictError, match="being trained by another run"):
            await ask(engine, model, a_pass(0), FIRST)
        clock.now += 1
        await ask(engine, model, a_pass(0), FIRST)
        # On this machine: killed, it is gone at once.
        process = await asyncio.create_subprocess_exec("sleep", "60")
        host, started = socket.gethostname(), process_started(process.pid)
        run = Contributor(f"trainer/{host}/{process.pid}/{started}/abc", "hud train")
        await ask(engine, model, OpenRequest(alone=True), run)
        with pytest.raises(ConflictError, match="hud train"):
            await ask(engine, model, OpenRequest(alone=True), SECOND)
        process.kill()
        await process.wait()
        await ask(engine, model, OpenRequest(alone=True), SECOND)


async def test_checkpoints_are_listed_with_the_step_that_is_being_taken(home, monkeypatch):
    await make("m")
    trainer = TrainingClient("m")
    await trainer.forward_backward(batch())
    begun, finish, apply = threading.Event(), threading.Event(), TrainedModel.apply

    def slowly(self, *args):
        begun.set()
        finish.wait()
        return apply(self, *args)

    monkeypatch.setattr(TrainedModel, "apply", slowly)
    step = asyncio.create_task(trainer.optim_step(learning_rate=1e-2))
    await asyncio.to_thread(begun.wait)
    listing, left = (asyncio.create_task(TrainingClient("m").checkpoints()) for _ in range(2))
    await asyncio.sleep(0.05)
    left.cancel()  # A reader that goes away takes nothing from the others.
    # As a killed client's: nobody waits for the answer, and the step is taken.
    step.cancel()
    await asyncio.wait([step])
    finish.set()
    assert [one.step for one in await listing] == [1]
