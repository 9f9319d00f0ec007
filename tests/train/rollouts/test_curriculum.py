"""Curricula: which tasks the steps of a training run play."""

from collections import Counter
from itertools import count, islice

import pytest

from hud import Environment
from hud.client import connect, disconnect
from hud.eval import StopSignal, Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.curriculum import FLOOR, MEMORY, Curriculum

SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SMALL = {"model": "m", "group": 2, "tasks_per_step": 2, "max_tokens": 4, "max_turns": 1}
SIGNAL = TrainConfig(**SMALL, curriculum="signal")

env = Environment("letters")
runs = count()


@env.template()
async def say(word: str):
    """Every other run earns more, except for words of one letter."""
    yield f"say {word}"
    yield 0.5 if len(word) == 1 else next(runs) % 2


TASKS = [say(word=word) for word in ("a", "b", "c", "d", "e", "f", "red", "blue")]
SLUGS = [task.slug for task in TASKS]
ALIKE = dict.fromkeys(SLUGS[:6], 0.0) | dict.fromkeys(SLUGS[6:], 0.25)


def drawn(curriculum, steps, number):
    return Counter(task.slug for step in steps for task in islice(curriculum.draw(step), number))


@pytest.mark.parametrize("config", [SIGNAL, TrainConfig(**SMALL)])
def test_every_task_comes_once_in_a_step_and_draws_repeat(config):
    curricula = [Curriculum(config, TASKS) for _ in range(2)]
    for one in curricula:
        one.record(0, ALIKE)
    first, second = ([task.slug for task in one.draw(1)] for one in curricula)
    assert first == second
    assert sorted(first) == sorted(SLUGS)
    assert first != [task.slug for task in curricula[0].draw(2)]


def test_tasks_are_drawn_by_their_gradient_weight_above_a_uniform_floor():
    curriculum = Curriculum(SIGNAL, TASKS)
    assert curriculum.estimates(0) == [1.0] * len(TASKS)
    for step in range(8):
        curriculum.record(step, ALIKE)
    shares = curriculum.estimates(8)
    assert max(shares[:6]) < 0.05 < 0.15 < min(shares[6:])
    times: Counter[str] = Counter()
    for seed in range(2000):
        curriculum.config = SIGNAL.model_copy(update={"seed": seed})
        times[next(curriculum.draw(8)).slug] += 1
    assert min(times.values()) > 0.7 * 2000 * FLOOR / len(TASKS)
    expected = 2000 * (FLOOR / len(TASKS) + (1 - FLOOR) * shares[7] / sum(shares))
    assert times[SLUGS[7]] == pytest.approx(expected, rel=0.1)


def test_one_group_with_signal_raises_its_task_little_and_one_without_lowers_it():
    curriculum = Curriculum(SIGNAL, TASKS)
    curriculum.record(0, dict.fromkeys(SLUGS[1:7], 0.1) | {SLUGS[0]: 0.0, SLUGS[7]: 0.2})
    low, usual, high = (curriculum.estimates(1)[place] for place in (0, 1, 7))
    assert low < 0.7 * usual < usual < high < 1.3 * usual


def test_a_task_without_groups_is_expected_to_be_like_its_kind():
    columns = [{"level": place % 2} for place in range(8)]
    tasks = [
        task.model_copy(update={"columns": one}) for task, one in zip(TASKS, columns, strict=True)
    ]
    curriculum = Curriculum(SIGNAL, tasks)
    curriculum.record(0, {SLUGS[0]: 0.0, SLUGS[2]: 0.0, SLUGS[1]: 0.2, SLUGS[3]: 0.2})
    even, odd = curriculum.estimates(1)[4:6]
    assert odd > 3 * even > 0


def test_groups_of_long_ago_are_forgotten():
    curriculum = Curriculum(SIGNAL, TASKS)
    curriculum.record(0, ALIKE)
    early = curriculum.estimates(1)
    assert curriculum.estimates(20)[7] < early[7]
    curriculum.record(MEMORY, {})
    assert curriculum.played == []


def test_where_nothing_has_signal_draws_are_uniform():
    curriculum = Curriculum(SIGNAL, TASKS)
    curriculum.record(0, dict.fromkeys(SLUGS, 0.0))
    assert min(drawn(curriculum, range(1, 401), 2).values()) > 60


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    body = {"name": "m", "texts": ["say red green blue"] * 3, "sizes": SIZES}
    await connect().post("/v2/models/create", body)
    yield
    disconnect(tmp_path / "home")


class Counts(Reporter):
    """Counts the groups without signal of each step; asks the run to stop after step `last`."""

    def __init__(self, last=None):
        self.stop, self.last, self.found = StopSignal(), last, []

    def stepped(self, step, metrics):
        self.found.append((step, metrics["groups_without_spread:sum"]))
        if step == self.last:
            self.stop.request()


@pytest.mark.slow
async def test_a_resumed_run_draws_by_the_groups_that_it_had_played(home):
    # Without advantages the weights stay as they are, so that both runs begin alike.
    settings = {**SMALL, "steps": 6, "max_concurrent": 1, "zero_advantages": True}
    config = TrainConfig(**settings, curriculum="signal", dynamic_sampling=0)

    async def played(last=None, fresh=False):
        counts, tasks = Counts(last), Taskset("t", TASKS)
        report = await train(config, tasks=tasks, reporter=counts, stop=counts.stop, fresh=fresh)
        return report, counts.found

    straight, found = await played()
    assert straight.finished
    stopped, before = await played(last=2, fresh=True)
    assert not stopped.finished
    resumed, after = await played()
    assert resumed.resumed
    assert before + after == found
