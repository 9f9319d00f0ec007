"""Sampling ahead of training: how far, with which weights, and what becomes of what is too old."""

import asyncio

import pytest
from tests.train.policy_home import policy_home

from hud import Environment
from hud.client import connect
from hud.errors import UsageError
from hud.eval import StopSignal, Taskset
from hud.eval.grade import Grade
from hud.eval.job import Job
from hud.eval.run import Run
from hud.trace import AgentStep, Sample
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.batch import RolloutBatch
from hud.train.rollouts.curriculum import Curriculum
from hud.train.rollouts.stream import RolloutStream

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
WORDS = ["red", "green", "blue", "yellow", "black", "white"]
SMALL = {
    "model": "m",
    "group": 4,
    "tasks_per_step": 2,
    "max_tokens": 8,
    "max_turns": 1,
    "steps": 4,
    "lr": 1e-3,
}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


@env.template()
async def slowly(word: str):
    await asyncio.sleep(0.05)
    answer = yield f"say {word}"
    await asyncio.sleep(0.05)
    yield min(1.0, len(answer) / 30)


@pytest.fixture
async def home(tmp_path, monkeypatch):
    async with policy_home(tmp_path, monkeypatch, TEXTS, SIZES) as folder:
        yield folder


def words(template):
    return Taskset("words", [template(word=word) for word in WORDS])


class Scripted:
    """Plays groups as a test says: rewards of group i, the checkpoint that drew it, and when it ends."""

    def __init__(self, weights=None, rewards=None, **config):
        self.config = TrainConfig(**{**SMALL, "max_lag": 1, **config})
        self.reporter, self.stop = Reporter(), StopSignal()
        self.weights, self.rewards = weights or {}, rewards or {}
        self.begun, self.gates = [], {}
        self.early = {}
        """How many of a group's runs end before its gate opens."""

    async def play_group(self, models, task, place, job, limit, on_run, *, step):
        number = place[-1]
        self.begun.append(number)
        rewards = self.rewards.get(number, [0.0, 1.0, 0.0, 1.0])
        runs = [self._run(task, number, reward) for reward in rewards]
        for run in runs[: self.early.get(number, 0)]:
            on_run(run)
        if number in self.gates:
            await self.gates[number].wait()
        for run in runs[self.early.get(number, 0) :]:
            on_run(run)
        return runs

    def _run(self, task, number, reward):
        if isinstance(reward, Exception):
            raise reward
        run = Run(task=task, group_id=f"group {number}", grade=Grade(reward=reward))
        sample = Sample(output_token_ids=[1], checkpoint=self.weights.get(number, "start"))
        run.trace.steps.append(AgentStep(content="x", sample=sample))
        return run


def stream_of(player):
    tasks = Curriculum(player.config, list(words(say)))
    stream = RolloutStream(player, {}, tasks, Job("j", "training"), 0)
    stream.start("start")
    return stream


def groups_in(batch):
    return [group[0].group_id for group in batch.groups]


async def batch_of(stream, learned=None):
    """A step's batch; the groups that came together are appended to `learned`."""
    batch = RolloutBatch()
    async for groups in stream.groups(batch):
        if learned is not None:
            learned.append([group[0].group_id for group in groups])
    return batch


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("lag", [1, 2, 3])
async def test_no_more_is_begun_than_may_be_learned_from_in_time(lag):
    player = Scripted(max_lag=lag, steps=20)
    stream = stream_of(player)
    await settled()
    assert len(player.begun) == 2 * (lag + 1)
    assert groups_in(await batch_of(stream)) == ["group 0", "group 1"]
    await settled()
    assert len(player.begun) == 2 * (lag + 1)  # Learned from is not yet stepped.
    stream.advance("one")
    await settled()
    assert len(player.begun) == 2 * (lag + 2)
    await stream.close()


async def test_groups_begin_when_there_is_room_to_play_them():
    player = Scripted(max_lag=3, steps=20, max_concurrent=10)
    player.gates = {number: asyncio.Event() for number in range(9)}
    stream = stream_of(player)
    await settled()
    assert player.begun == [0, 1, 2]  # Of the third, two runs wait for room.
    player.gates[0].set()
    taking = asyncio.create_task(batch_of(stream))
    await settled()
    assert player.begun == [0, 1, 2, 3]
    await stream.close()
    taking.cancel()


@pytest.mark.parametrize(
    ("early", "begun"),
    [
        # One and two still run; there is room for four more, and for one of another four.
        pytest.param(
            {0: 3, 1: 2}, [0, 1, 2, 3], id="that of the others of theirs, which still run"
        ),
        # Three of the second group run; the first is being put away, and holds its room like one that ended.
        pytest.param({0: 4, 1: 1}, [0, 1, 2], id="that of a group that is being put away"),
    ],
)
async def test_the_room_of_runs_that_ended_is_for_the_next_group_but_for(early, begun):
    player = Scripted(max_lag=3, steps=20, max_concurrent=8)
    player.gates = {number: asyncio.Event() for number in range(9)}
    player.early = early
    stream = stream_of(player)
    await settled()
    assert player.begun == begun
    await stream.close()


async def test_what_waits_for_the_trainer_holds_the_room_that_it_had():
    player = Scripted(max_lag=3, steps=20, max_concurrent=8)
    stream = stream_of(player)
    await settled()
    assert player.begun == [0, 1, 2]  # The third when there was room for one of its runs.
    assert groups_in(await batch_of(stream)) == ["group 0", "group 1"]
    await settled()
    assert player.begun == [0, 1, 2, 3, 4]
    await stream.close()


async def test_what_waits_for_a_slower_group_holds_no_room():
    player = Scripted(max_lag=3, steps=20, max_concurrent=8)
    player.gates[0] = asyncio.Event()
    stream = stream_of(player)
    await settled()
    # With three that ended the step need not wait any longer: another began before the third was over, and no more.
    assert player.begun == [0, 1, 2, 3, 4]
    await stream.close()


@pytest.mark.parametrize(("at_once", "per_step"), [(8, 4), (12, 4), (16, 4), (16, 6), (24, 6)])
async def test_a_run_that_never_ends_holds_up_no_step(at_once, per_step):
    sizes = {"max_concurrent": at_once, "tasks_per_step": per_step}
    player = Scripted(max_lag=3, steps=9, stale="correct", loss="ppo", **sizes)
    player.gates[0], player.early[0] = asyncio.Event(), 3
    stream = stream_of(player)
    for step in range(6):
        batch = await asyncio.wait_for(batch_of(stream), 5)
        assert len(batch.groups) == per_step
        stream.advance(f"step {step}")
        await settled()
        # What lets a step go on without it, and what there is room for besides.
        waiting = len(player.begun) - 1 - per_step * (step + 1)
        assert waiting <= 1.5 * per_step + at_once / 4 + 1
    await stream.close()


async def test_nothing_is_begun_for_steps_that_never_come():
    player = Scripted(max_lag=5, steps=3)
    stream = stream_of(player)
    await settled()
    assert len(player.begun) == 6
    await stream.close()


async def test_groups_are_learned_from_in_the_order_in_which_they_began():
    player = Scripted()
    player.gates = {number: asyncio.Event() for number in (0, 3)}
    stream = stream_of(player)
    taking = asyncio.create_task(batch_of(stream))
    await settled()
    assert not taking.done()  # Two have ended, but began later than one that has not.
    player.gates[0].set()
    assert groups_in(await taking) == ["group 0", "group 1"]
    await stream.close()


async def test_a_slow_group_holds_up_none_once_half_as_many_again_as_a_step_needs_have_ended():
    player = Scripted()
    player.gates[0] = asyncio.Event()
    stream = stream_of(player)
    assert groups_in(await batch_of(stream)) == ["group 1", "group 2"]
    stream.advance("one")
    player.gates[0].set()
    later = groups_in(await batch_of(stream)) + groups_in(await batch_of(stream))
    assert sorted(later) == ["group 0", "group 3", "group 4", "group 5"]
    await stream.close()


async def test_groups_are_learned_from_as_they_come():
    player = Scripted()
    player.gates = {number: asyncio.Event() for number in (1, 2, 3)}
    stream = stream_of(player)
    learned = []
    taking = asyncio.create_task(batch_of(stream, learned))
    await settled()
    assert learned == [["group 0"]]
    assert not taking.done()
    player.gates[1].set()
    assert groups_in(await taking) == ["group 0", "group 1"]
    assert learned == [["group 0"], ["group 1"]]
    await stream.close()


async def test_groups_that_are_there_are_learned_from_together_and_none_without_spread():
    player = Scripted(rewards={0: [1.0] * 4})
    stream = stream_of(player)
    learned = []
    assert groups_in(await batch_of(stream, learned)) == ["group 1", "group 2"]
    assert learned == [["group 1", "group 2"]]
    await stream.close()


async def test_groups_without_spread_are_replaced():
    player = Scripted(rewards={0: [1.0] * 4, 1: [0.0] * 4})
    stream = stream_of(player)
    batch = await batch_of(stream)
    assert groups_in(batch) == ["group 2", "group 3"]
    assert (batch.drawn, batch.no_signal, batch.replaced) == (4, 2, 2)
    await settled()
    assert len(player.begun) == 6  # Four that may be learned from, two that may not.
    await stream.close()


async def test_a_step_gives_up_replacing_after_as_many_groups_as_it_may_draw():
    player = Scripted(rewards={number: [1.0] * 4 for number in range(20)})
    stream = stream_of(player)
    batch = await batch_of(stream)
    assert (groups_in(batch), batch.drawn) == ([], 4)
    await stream.close()


@pytest.mark.parametrize(("stale", "loss"), [("drop", "ppo"), ("correct", "ppo")])
async def test_groups_that_are_too_old_are_left_out_or_kept(stale, loss):
    player = Scripted(stale=stale, loss=loss, steps=9, weights=dict.fromkeys(range(4, 20), "two"))
    player.gates[0] = asyncio.Event()
    stream = stream_of(player)
    assert groups_in(await batch_of(stream)) == ["group 1", "group 2"]
    stream.advance("one")
    stream.advance("two")
    await settled()
    player.gates[0].set()
    await settled()
    found = [await batch_of(stream) for _ in range(3)]
    learned = [name for batch in found for name in groups_in(batch)]
    # Of the weights that the run began with, now two steps ago; so is group 3.
    assert ("group 0" in learned) == (stale == "correct")
    assert sum(batch.stale for batch in found) == (2 if stale == "drop" else 0)
    await stream.close()


async def test_what_ends_a_job_ends_the_step_that_waits():
    player = Scripted(rewards={1: [UsageError("The store is full.")]})
    player.gates = {number: asyncio.Event() for number in (0, 2, 3)}
    stream = stream_of(player)
    with pytest.raises(UsageError, match="The store is full"):
        await batch_of(stream)
    await stream.close()


async def test_a_stop_ends_the_waiting_and_begins_nothing():
    player = Scripted()
    player.gates = {number: asyncio.Event() for number in range(9)}
    stream = stream_of(player)
    taking = asyncio.create_task(batch_of(stream))
    await settled()
    player.stop.request()
    assert groups_in(await taking) == []
    closing = asyncio.create_task(stream.close())
    await settled()
    assert not closing.done()  # What is in flight may end.
    for gate in player.gates.values():
        gate.set()
    await closing
    assert len(player.begun) == 4


@pytest.mark.slow
async def test_training_ahead_takes_every_step_on_tokens_no_older_than_it_may(home):
    config = TrainConfig(**SMALL, max_lag=2, stale="drop")
    report = await train(config, tasks=words(slowly))
    assert report.finished
    assert [row["step"] for row in report.history] == [0, 1, 2, 3]
    for row in report.history:  # However many parts a step's groups came in.
        found = row["metrics"]
        left = found["groups_drawn:sum"] - found["groups_without_spread:sum"]
        assert found["runs:sum"] == SMALL["group"] * (left - found["groups_stale:sum"])
        assert 0 < found["seconds_apply:sum"] < found["seconds_update:sum"] < found["seconds:sum"]
    lags = [row["metrics"]["group_lag:max"] for row in report.history]
    assert max(lags) <= 2
    assert lags[1] > 0  # Begun with the weights before the first step.


@pytest.mark.slow
async def test_the_tokens_of_a_second_are_of_a_whole_step_however_little_it_waits_for_them(home):
    class Metrics(Reporter):
        def stepped(self, step, metrics):
            drawn.append(metrics["tokens_per_second:mean"] * metrics["seconds:sum"])

    drawn = []
    config = TrainConfig(**SMALL, max_lag=2)
    await train(config, tasks=words(slowly), reporter=Metrics())
    most = config.max_tokens * config.group * config.tasks_per_step * (1 + config.dynamic_sampling)
    assert all(0 < tokens <= most for tokens in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("swap", ["in_flight", "finish"])
async def test_every_step_is_saved_whichever_weights_finish_a_turn(home, swap):
    config = TrainConfig(**SMALL, max_lag=1, swap=swap, max_concurrent=8)
    report = await train(config, tasks=words(slowly))
    assert report.finished
    assert report.head is not None
    nodes = await connect().get(f"/v2/models/{await model_id()}/checkpoints")
    assert [node["step"] for node in nodes] == [1, 2, 3, 4]


@pytest.mark.slow
async def test_a_run_ahead_that_was_stopped_goes_on_where_it_was(home):
    stop = StopSignal()

    class StopAfterOne(Reporter):
        def stepped(self, step, metrics):
            stop.request()

    config = TrainConfig(**SMALL, max_lag=1, max_concurrent=8)
    first = await train(config, tasks=words(slowly), reporter=StopAfterOne(), stop=stop)
    assert (first.finished, first.next_step) == (False, 1)
    second = await train(config, tasks=words(slowly))
    assert (second.resumed, second.first_step, second.finished) == (True, 1, True)


def test_a_loss_that_is_not_given_bounds_the_weights_of_old_tokens():
    assert make_config({"model": "m"}).loss == "importance_sampling"
    ahead = make_config({"model": "m", "max_lag": 1, "loss_config": {"token_mean": 1.0}})
    assert (ahead.loss, ahead.loss_config) == ("ppo", {"dual_clip": 3.0, "token_mean": 1.0})
    assert make_config({"model": "m", "max_lag": 1, "loss": "dro"}).loss == "dro"


def test_twice_as_many_rollouts_run_at_a_time_where_nothing_else_is_said_and_sampling_is_ahead():
    given = ({}, {"max_lag": 0}, {"max_lag": 2}, {"max_lag": 2, "max_concurrent": 5})
    configs = [make_config({"model": "m", **values}) for values in given]
    assert [config.max_concurrent for config in configs] == [64, 64, 128, 5]


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "said"), [("importance_sampling", 1), ("cispo", 0)])
async def test_a_loss_that_bounds_no_weights_is_remarked_on_where_tokens_are_old(home, loss, said):
    class Listening(Reporter):
        def __init__(self):
            self.notes = []

        def note(self, text):
            self.notes.append(text)

    heard = Listening()
    config = TrainConfig(**{**SMALL, "steps": 1}, max_lag=1, loss=loss)
    await train(config, tasks=words(say), reporter=heard)
    assert sum("use ppo or cispo" in text for text in heard.notes) == said


@pytest.mark.parametrize(
    ("loss", "keys", "bounded"),
    [
        ("importance_sampling", {}, False),
        # It multiplies by the ratio whose own share stays without a bound.
        ("importance_sampling", {"tis_token_cap": 2.0}, False),
        ("importance_sampling", {"tis_sequence_cap": 5.0}, False),
        ("importance_sampling", {"icepop_high": 2.0}, True),
        ("importance_sampling", {"outlier_mask_low": 0.01}, True),
        ("importance_sampling", {"sequence_mask_low": 0.9}, False),
        ("dro", {}, False),
        ("dro", {"tis_token_cap": 2.0}, True),
        ("ppo", {}, True),
    ],
)
def test_correcting_needs_a_loss_that_can(loss, keys, bounded):
    values = {**SMALL, "stale": "correct", "loss": loss, "loss_config": keys}
    if bounded:
        assert make_config(values).bounds_ratios
    else:
        with pytest.raises(UsageError, match=f"bounds its importance weights: .* not {loss}"):
            make_config(values)


async def model_id():
    return (await connect().get("/v2/models/resolve", params={"model": "m"}))["id"]
