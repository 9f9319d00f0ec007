"""Held-out sets: several in one evaluation, each with a score, a change and a key in the log."""

import json

import pytest

from hud import Environment
from hud.benchmarks import benchmark
from hud.client import connect, disconnect
from hud.errors import NotFoundError, UsageError
from hud.eval import StopSignal, Taskset
from hud.eval.results.held_out_scores import scores_of
from hud.train.config import TrainConfig, load_config
from hud.train.loop import train
from hud.train.monitoring.evaluations import evaluation_lines
from hud.train.monitoring.progress import Reporter, score_key
from hud.train.rollouts.held_out import HeldOut, held_out_sets

env = Environment("letters")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


@env.template()
async def never(word: str):
    yield f"never {word}"
    yield 0.0


WORDS = ("red", "green", "blue", "yellow", "pink", "black")
TRAINED = Taskset("trained", [say(word=word) for word in ("one", "two")])
LONG = Taskset("long-answers", [say(word=word) for word in WORDS])
NEVER = Taskset("never-50", [never(word=word) for word in WORDS])


@pytest.fixture
async def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    sizes = {"hidden": 32, "layers": 1, "vocab_size": 300, "max_context": 96}
    texts = [f"say {word}" for word in WORDS] * 5
    await connect().post("/v2/models/create", {"name": "m", "texts": texts, "sizes": sizes})
    yield tmp_path
    disconnect(tmp_path)


class StopAfter(Reporter):
    """Stops a run after the held-out score of a step."""

    def __init__(self, step):
        self.stop, self.step = StopSignal(), step

    def scored(self, score):
        if score.step == self.step:
            self.stop.request()


@pytest.mark.slow
async def test_every_set_has_a_score_a_change_and_a_key_also_after_a_stop(home):
    config = TrainConfig(
        model="m", steps=3, group=4, lr=0.01, max_tokens=8, max_turns=1, eval_every=1
    )
    halfway = StopAfter(1)
    sets = [LONG, NEVER]
    first = await train(config, tasks=TRAINED, held_out=sets, reporter=halfway, stop=halfway.stop)
    assert first.next_step == 1
    # Another process: what the first evaluations measured comes from the store.
    report = await train(config, tasks=TRAINED, held_out=sets)
    assert [score.step for score in report.scores] == [0, 1, 2, 3]
    for score in report.scores:
        long, never_any = score.sets
        assert (long.name, never_any.name) == ("long-answers", "never-50")
        assert never_any.mean == 0.0
        assert score.mean == pytest.approx(long.mean / 2)
        assert score.runs == long.runs + never_any.runs == 12
    changes = [score.sets[0].change for score in report.scores]
    assert changes[0] is None
    means = [score.sets[0].mean for score in report.scores]
    assert changes[1].mean == pytest.approx(means[1] - means[0])
    assert changes[2].mean == pytest.approx((means[1] + means[2]) / 2 - means[0])
    assert changes[3].mean == pytest.approx((means[2] + means[3] - means[0] - means[1]) / 2)
    assert [change.below for change in changes[1:]] == [
        int(means[1] < means[0]),
        *(
            2 if max(pair) < best else int(pair[1] < best)
            for pair, best in ((means[1:3], means[0]), (means[2:], (means[0] + means[1]) / 2))
        ),
    ]
    assert changes[1].low < changes[1].mean < changes[1].high

    rows = [json.loads(line) for line in report.metrics_file.read_text().splitlines()]
    lines = [row for row in rows if "held_out" in row]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["grpo_reward_mean"] is None
    for line, before, score in zip(lines[1:], report.history, report.scores[1:], strict=True):
        assert line["grpo_reward_mean"] == before["metrics"]["rollout_reward:mean"]
        assert line["kl_divergence"] == before["metrics"]["sampler_k3:mean"]
        assert line["completion_tokens"] == before["metrics"]["rollout_tokens:mean"]
        assert (line["long_answers_score"], line["never50_score"]) == (score.sets[0].mean, 0.0)
        assert "entropy" in line
    (stored,) = (await connect().get("/v2/training-runs"))["items"]
    assert tuple(scores_of(stored["state"])) == tuple(report.scores)
    shown = evaluation_lines(report.history, report.scores)
    assert shown == [{key: line[key] for key in line if key != "held_out"} for line in lines]


def test_keys_of_the_log_are_those_of_the_benchmarks():
    assert score_key("sheetbench-50") == "sheetbench50_score"
    assert score_key("autonomy-10") == "autonomy10_score"
    assert score_key("reasoning-gym/chain_sum") == "reasoning_gym_chain_sum_score"
    assert score_key("bfcl-multi-turn") == "bfcl_multi_turn_score"


def test_sets_may_share_slugs_and_names():
    again = HeldOut([LONG, LONG])
    slugs = [task.slug for task in again.tasks]
    assert len(set(slugs)) == 12
    assert slugs[6:] == [f"long-answers-2/{slug}" for slug in slugs[:6]]
    assert all(task.environment is env for task in again.tasks)
    assert again.trained_on(task.identity for task in list(LONG)[:2]) == 4


def test_a_set_is_a_file_or_a_benchmark(tmp_path):
    file = tmp_path / "held.jsonl"
    LONG.to_file(file)
    assert [one.name for one in held_out_sets(None, [str(file)])] == ["held"]
    with pytest.raises(NotFoundError, match="There is no benchmark 'nothing'"):
        held_out_sets(None, ["benchmark:nothing"])
    with pytest.raises(UsageError, match="The held-out set 'empty' has no tasks"):
        held_out_sets(Taskset("empty"), [])
    name = "reasoning-gym/chain_sum"
    if benchmark(name).package.installed:
        (found,) = held_out_sets(None, [f"benchmark:{name}"])
        assert (found.name, len(found)) == (name, 100)


def test_one_set_or_several_in_a_configuration(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text('model = "m"\nheld_out = "held_out.py"\n')
    assert load_config(file, {}).held_out == ["held_out.py"]
    file.write_text('model = "m"\nheld_out = ["held_out.py", "benchmark:sheetbench-50"]\n')
    assert load_config(file, {}).held_out == ["held_out.py", "benchmark:sheetbench-50"]
    assert TrainConfig(model="m").held_out == []
