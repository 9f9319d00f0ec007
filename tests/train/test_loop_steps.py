"""What a step plays, what it learns from, and when the loop gives up or goes on."""

import asyncio
import io
import itertools
import json
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console
from tests.train.policy_home import policy_home

from hud import Environment, TrainingClient
from hud.cli.models.tree import draw_tree
from hud.cli.training.panel import Lines
from hud.cli.training.plan_simulation import recorded
from hud.client import connect
from hud.engine.tiny_model import create_tiny
from hud.errors import UsageError
from hud.eval import StopSignal, Taskset
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train, warm_up
from hud.train.monitoring.progress import Reporter
from hud.train.planning.default_rates import default_rates
from hud.train.planning.simulation import simulate
from hud.train.rollouts.seeds import draw_tasks, seed_of
from hud_dashboard.pages.models import node_shown

TEXTS = ["say red green blue yellow", "aeiou"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
WORDS = ["red", "green", "blue", "yellow", "black", "white"]
SMALL = {"group": 4, "tasks_per_step": 2, "max_tokens": 8, "max_turns": 1, "steps": 2, "lr": 1e-3}

MODEL = {"model_name": "m", "config": {"origin_checkpoint": None, "source": "preset tiny"}}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


@env.template()
async def hopeless(word: str):
    yield f"say {word}"
    yield 0.0


@env.template()
async def same(word: str):
    yield f"say {word}"
    yield 0.5


@env.template()
async def solved(word: str):
    yield f"say {word}"
    yield 1.0


played = itertools.count()


@env.template()
async def learned(word: str):
    """Rewards differ in the first step only, and are below the top ever after."""
    yield f"say {word}"
    number = next(played)
    yield number % 2 if number < 8 else 0.5


@env.template()
async def broken(word: str):
    yield f"say {word}"
    raise RuntimeError("the grader fell over")


def tasks_of(template, words=WORDS):
    return Taskset("words", [template(word=word) for word in words])


@pytest.fixture
async def home(tmp_path, monkeypatch):
    async with policy_home(tmp_path, monkeypatch, TEXTS, SIZES) as folder:
        yield folder


def test_every_task_is_drawn_before_any_twice():
    steps = [list(itertools.islice(draw_tasks(range(6), 0, step, 2), 2)) for step in range(3)]
    assert sorted(itertools.chain(*steps)) == list(range(6))


def test_no_task_comes_twice_in_a_step_and_draws_repeat():
    drawn = list(draw_tasks(range(5), 3, 7, 4))
    assert sorted(drawn) == list(range(5))
    assert drawn == list(draw_tasks(range(5), 3, 7, 4))
    assert drawn != list(draw_tasks(range(5), 4, 7, 4))


def test_seeds_differ_by_every_part_of_their_place():
    places = [
        (0, 1, "a", 0),
        (0, 1, "a", 1),
        (0, 2, "a", 0),
        (1, 1, "a", 0),
        (0, 1, "b", 0),
        (0, "1", "a0"),
    ]
    assert len({seed_of(*place) for place in places}) == len(places)


@pytest.mark.slow
async def test_a_step_learns_and_tells_what_it_measured(home):
    report = await train(TrainConfig(model="m", **SMALL), tasks=tasks_of(say))
    assert report.finished
    metrics = report.history[0]["metrics"]
    for name in (
        "rollout_reward:mean",
        "loss:sum",
        "grad_norm:mean",
        "seconds_rollouts:sum",
        "sampled_tokens:sum",
    ):
        assert name in metrics, name
    lines = [json.loads(line) for line in report.metrics_file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert report.plot.exists()


@pytest.mark.slow
async def test_a_step_has_one_reward_and_says_what_it_learned_from(home):
    # Three of four tasks always fail: they are measured, and nothing is learned from them.
    mixed = Taskset("mixed", [hopeless(word=w) for w in WORDS[:3]] + [say(word=WORDS[3])])
    settings = {**SMALL, "tasks_per_step": 4, "steps": 2, "dynamic_sampling": 0}
    await train(TrainConfig(model="m", **settings), tasks=mixed)
    config = TrainConfig(model="m", **{**settings, "seed": 1})
    report = await train(config, tasks=mixed, fresh=True)
    nodes = await connect().get("/v2/models/m/checkpoints")
    for row, node in zip(report.history, nodes[2:], strict=True):
        metrics = row["metrics"]
        assert node["mean_reward"] == metrics["rollout_reward:mean"] == metrics["reward:mean"]
        assert metrics["trained_reward:mean"] == pytest.approx(4 * node["mean_reward"])
        # Its number in the run and in the model's tree stand together.
        assert (node["training_step"], node["step"]) == (row["step"] + 1, metrics["model_step"])
        assert node["step"] == row["step"] + 3
        (line,) = (one for one in draw_tree(MODEL, nodes) if node["name"] in one)
        assert f"  {node['mean_reward']:.3f}  " in line
        assert f"training step {row['step'] + 1}, trained runs" in line
        assert f"trained runs {metrics['trained_reward:mean']:.3f}" in line
        out = io.StringIO()
        Lines(config, Console(file=out, width=200)).stepped(row["step"], metrics)
        assert f"   {row['step'] + 1}     step-{node['step']}  " in out.getvalue()
        record = connect().embedded.parts.registry.tree.get(node["id"])
        shown = node_shown(record, {})
        assert shown["reward"] == node["mean_reward"]
        assert shown["trained_reward"] == metrics["trained_reward:mean"]


async def test_zero_advantages_change_no_weight(home):
    platform = connect().embedded.parts
    policy = platform.policies.serving(platform.registry.model("m")).policy
    before = {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}
    config = TrainConfig(model="m", zero_advantages=True, **SMALL)
    report = await train(config, tasks=tasks_of(say))
    assert report.finished
    assert report.head is not None
    assert all(bool((before[n] == p).all()) for n, p in policy.decoder.named_parameters())


async def test_shuffled_advantages_move_weights_and_exclude_zero_ones(home):
    platform = connect().embedded.parts
    policy = platform.policies.serving(platform.registry.model("m")).policy
    before = {name: p.detach().clone() for name, p in policy.decoder.named_parameters()}
    assert (
        await train(TrainConfig(model="m", shuffle_advantages=True, **SMALL), tasks=tasks_of(say))
    ).finished
    assert any(bool((before[n] != p).any()) for n, p in policy.decoder.named_parameters())
    with pytest.raises(ValidationError, match="choose one of them"):
        TrainConfig(model="m", shuffle_advantages=True, zero_advantages=True)


@pytest.mark.slow
async def test_groups_without_spread_are_replaced_a_bounded_number_of_times(home):
    mixed = Taskset("mixed", [hopeless(word=w) for w in WORDS] + [say(word=w) for w in WORDS])
    config = TrainConfig(model="m", **{**SMALL, "steps": 3, "dynamic_sampling": 2})
    report = await train(config, tasks=mixed)
    assert report.finished
    assert report.groups_without_spread > 0
    assert report.groups_replaced > 0
    assert all(row["metrics"]["groups_drawn:sum"] <= 6 for row in report.history)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "advice"),
    [(hopeless, "had only runs with reward 0. m has random"), (same, "had no group with signal")],
)
async def test_tasks_that_never_differ_end_with_advice(home, template, advice):
    config = TrainConfig(model="m", **{**SMALL, "steps": 20})
    with pytest.raises(UsageError, match=f"steps in a row {advice}"):
        await train(config, tasks=tasks_of(template))


class Listener(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.slow
async def test_curves_that_cannot_be_written_are_noted_and_fail_no_finished_run(home):
    """Else the command is repeated, and trains once more."""
    heard, place = Listener(), home / "curves.png"
    place.mkdir(parents=True)
    config = TrainConfig(model="m", **{**SMALL, "steps": 1}, plot=str(place))
    report = await train(config, tasks=tasks_of(say), reporter=heard)
    assert (report.finished, report.plot) == (True, None)
    assert heard.notes[-1] == f"The curves cannot be written to {place}: Is a directory."


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


RATES = {
    "created here": ("m", 1e-4, 1e-3),
    "a fork of it": ("fork", 1e-4, 1e-3),
    "full fine-tuning": ("full", 1e-5, 1e-4),
    "an adapter": ("adapter", 1e-4, 1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("trained", RATES)
async def test_the_default_rate_depends_on_what_is_trained(home, tmp_path, trained):
    """A rate that teaches a tiny model ruins a pretrained one."""
    model, by_reward, supervised = RATES[trained]
    client, heard = connect(), Listener()
    if model == "fork":
        parent = await client.get("/v2/models/resolve", params={"model": "m"})
        body = {"source_model_id": parent["id"], "name": "fork"}
        await client.post("/v2/models/fork", body)
    elif model != "m":
        create_tiny(tmp_path / "pretrained", TEXTS, **{**SIZES, "heads": 2})
        config = {"training": "lora" if model == "adapter" else "full"}
        body = {"source": str(tmp_path / "pretrained"), "name": model, "config": config}
        await client.post("/v2/models/add", body)
    assert (await default_rates(client, model)).supervised == supervised
    settings = {name: value for name, value in SMALL.items() if name != "lr"} | {"steps": 1}
    config = TrainConfig(model=model, **settings)
    report = await train(config, tasks=tasks_of(say), reporter=heard)
    (metrics,) = await asyncio.to_thread(lines_of, report.metrics_file)
    assert metrics["learning_rate"] == by_reward
    assert heard.notes[0].startswith(f"Learning rate {by_reward:g}, the default for ")
    set_by_hand = TrainConfig(model=model, **settings, lr=3e-4)
    await train(set_by_hand, tasks=tasks_of(say), reporter=(quiet := Listener()))
    assert not any(note.startswith("Learning rate") for note in quiet.notes)


@pytest.mark.slow
async def test_a_converged_policy_finishes_and_keeps_its_head(home):
    heard = Listener()
    config = TrainConfig(model="m", **{**SMALL, "steps": 20})
    held_out = Taskset("held out", [solved(word="pink")])
    report = await train(config, tasks=tasks_of(solved), held_out=held_out, reporter=heard)
    assert (report.finished, report.next_step, report.head) == (True, 10, None)
    assert [score.step for score in report.scores] == [0, 10]
    assert heard.notes == [
        "m has converged: for 10 steps in a row the runs of every group earned the same, 1.000 on average, so there is "
        "nothing left to learn from these tasks."
    ]
    again = await train(config, tasks=tasks_of(solved))
    assert (again.resumed, again.finished) == (True, True)


@pytest.mark.slow
async def test_a_run_that_had_signal_finishes_where_none_is_left(home, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "played", itertools.count())
    heard = Listener()
    config = TrainConfig(model="m", **{**SMALL, "steps": 20, "dynamic_sampling": 0})
    report = await train(config, tasks=tasks_of(learned), reporter=heard)
    assert (report.finished, report.next_step) == (True, 11)
    assert report.head is not None
    assert "m gives no signal any more" in heard.notes[-1]
    assert "earned the same, 0.500 on average" in heard.notes[-1]


async def test_a_run_of_which_nothing_is_measured_ends_with_an_error(home):
    config = TrainConfig(model="m", **{**SMALL, "steps": 20})
    with pytest.raises(UsageError, match="10 steps in a row no run was measured: every one failed"):
        await train(config, tasks=tasks_of(broken))


@pytest.mark.slow
async def test_failures_that_are_not_the_agents_are_never_trained_on(home):
    half = Taskset("half", [broken(word=w) for w in WORDS[:2]] + [say(word=w) for w in WORDS[2:4]])
    config = TrainConfig(model="m", **{**SMALL, "tasks_per_step": 4, "steps": 1})
    report = await train(config, tasks=half)
    metrics = report.history[0]["metrics"]
    assert metrics["failed_rollouts:sum"] >= 8
    assert metrics["runs:sum"] == 8


@pytest.mark.slow
async def test_the_same_configuration_goes_on_and_a_finished_run_is_not_repeated(home):
    stop = StopSignal()

    class StopAfterOne(Reporter):
        def stepped(self, step, metrics):
            stop.request()

    config = TrainConfig(model="m", **{**SMALL, "steps": 3})
    first = await train(config, tasks=tasks_of(say), reporter=StopAfterOne(), stop=stop)
    assert (first.finished, first.next_step) == (False, 1)
    second = await train(config, tasks=tasks_of(say))
    assert (second.run_id, second.first_step, second.finished) == (first.run_id, 1, True)
    notes = Listener()
    third = await train(config, tasks=tasks_of(say), reporter=notes)
    assert (third.run_id, third.first_step, third.next_step) == (first.run_id, 3, 3)
    assert (third.finished, third.history) == (True, second.history)
    assert [note for note in notes.notes if "has finished already, after 3 steps" in note]
    assert len(await TrainingClient("m").checkpoints()) == 3

    longer = config.model_copy(update={"steps": 5})
    fourth = await train(longer, tasks=tasks_of(say))
    assert (fourth.run_id, fourth.first_step, fourth.next_step) == (first.run_id, 3, 5)
    other = await train(longer, tasks=tasks_of(say, words=("olive", "amber")))
    assert (other.run_id != first.run_id, other.first_step) == (True, 0)
    fresh = await train(config, tasks=tasks_of(say), fresh=True)
    assert (fresh.run_id != first.run_id, fresh.first_step, fresh.next_step) == (True, 0, 3)


@pytest.mark.slow
async def test_a_head_that_was_moved_away_begins_a_new_run(home):
    stop = StopSignal()

    class StopAfterTwo(Reporter):
        notes: list[str] = []  # noqa: RUF012

        def stepped(self, step, metrics):
            if step == 1:
                stop.request()

        def note(self, text):
            self.notes.append(text)

    config = TrainConfig(model="m", **{**SMALL, "steps": 4})
    watch = StopAfterTwo()
    first = await train(config, tasks=tasks_of(say), reporter=watch, stop=stop)
    nodes = await connect().get("/v2/models/m/checkpoints")
    # Back along its own path: the run goes on from there.
    await connect().put("/v2/models/m/head", {"checkpoint_id": nodes[0]["id"]})
    again = await train(config, tasks=tasks_of(say), stop=_stopped_at_once(), reporter=watch)
    assert (again.run_id, again.first_step) == (first.run_id, 1)
    # Elsewhere: it is another run.
    await warm_up("m", job_runs := await _recorded(), batch=4)
    assert job_runs
    other = await train(config, tasks=tasks_of(say), stop=_stopped_at_once(), reporter=watch)
    assert other.run_id != first.run_id
    assert "head has been moved" in watch.notes[-1]


@pytest.mark.slow
async def test_pruning_keeps_the_newest_and_the_best(home):
    config = TrainConfig(model="m", **{**SMALL, "steps": 5, "keep": 2, "eval_every": 2})
    report = await train(config, tasks=tasks_of(say), held_out=tasks_of(say))
    nodes = await connect().get("/v2/models/m/checkpoints")
    *_, best = max((one.mean, one.step, one.checkpoint_id) for one in report.scores if one.step)
    kept = {node["id"] for node in nodes if not node["pruned"]}
    assert kept == {best} | {node["id"] for node in nodes[-2:]}
    assert [score.step for score in report.scores] == [0, 2, 4, 5]


@pytest.mark.slow
async def test_warm_up_teaches_what_a_script_said_and_keeps_one_checkpoint(home):
    report = await warm_up("m", await _recorded(), epochs=15, batch=6, lr=1e-2)
    assert report.last_loss < 0.3 * report.first_loss
    nodes = await connect().get("/v2/models/m/checkpoints")
    assert [node["pruned"] for node in nodes] == [True] * (len(nodes) - 1) + [False]


@pytest.mark.slow
async def test_two_trainings_of_one_model_at_once_do_not_mix(home):
    config = TrainConfig(model="m", **SMALL)
    first, second = await asyncio.gather(
        train(config, tasks=tasks_of(say)),
        train(make_config({**config.model_dump(), "seed": 1}), tasks=tasks_of(say)),
        return_exceptions=True,
    )
    outcomes = [one for one in (first, second) if isinstance(one, Exception)]
    assert len(outcomes) == 1
    assert "being trained by another run" in str(outcomes[0])


async def _recorded():
    from hud.agents import ScriptedAgent

    agent = ScriptedAgent(lambda messages, tools, trace: "aeiou")
    return (await tasks_of(say).run(agent, group=2)).runs


def _stopped_at_once():
    stop = StopSignal()
    stop.request()
    return stop


@pytest.mark.slow
async def test_a_run_is_simulated_from_what_it_recorded_with_groups_that_are_drawn_again(home):
    mixed = Taskset(
        "words", [(say if row % 2 else hopeless)(word=word) for row, word in enumerate(WORDS)]
    )
    config = TrainConfig(model="m", **SMALL, dynamic_sampling=2)
    await train(config, tasks=mixed, reporter=Reporter())
    measured, setup, took = await recorded("m", None, 8)
    assert (setup.steps, setup.group, setup.tasks_per_step, setup.dynamic_sampling) == (2, 4, 2, 2)
    assert len(measured.shapes) == 8
    assert 0 < measured.left_out < 1
    steps, seconds = took
    assert steps == 2
    predicted = simulate(measured, setup)
    assert predicted.rollouts >= 2 * 2 * 4
    assert 0 < predicted.seconds < 10 * seconds


@pytest.mark.slow
async def test_without_a_baseline_a_group_of_zeros_has_no_signal(home):
    """No advantage is above 0, so nothing is accumulated: a step of it is counted, and the run goes on."""
    config = TrainConfig(model="m", **{**SMALL, "steps": 1, "baseline": "none"})
    report = await train(config, tasks=tasks_of(hopeless))
    assert (report.finished, report.groups_without_spread > 0) == (True, True)


slow_words: list[str] = []


@env.template()
async def slow_once(word: str):
    """The first task that begins takes for ever."""
    slow_words.append(word)
    if slow_words[0] == word:
        await asyncio.sleep(600)
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


@pytest.mark.slow
async def test_a_step_with_spare_groups_learns_from_the_first_whole_ones(home):
    slow_words.clear()
    config = TrainConfig(model="m", **{**SMALL, "steps": 1, "dynamic_sampling": 0}, spare_groups=2)
    report = await asyncio.wait_for(train(config, tasks=tasks_of(slow_once)), 60)
    assert report.finished
    (node,) = await connect().get("/v2/models/m/checkpoints")
    # Two whole groups of four, and none of the one that was cancelled.
    assert node["num_traces"] in (4, 8)
