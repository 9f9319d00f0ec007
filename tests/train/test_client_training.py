"""`TrainingClient` over the platform of this process, on runs that its own policy played."""

import ast
import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from statistics import fmean

import pytest
from tests.train.policy_home import policy_home

from hud import Environment, TrainingClient
from hud.agents import create_agent
from hud.client import Client, connect
from hud.errors import ConflictError, NotFoundError, UsageError
from hud.eval import Taskset
from hud.eval.grade import Grade
from hud.graders import EvaluationResult
from hud.learning.wire_types import AdvantageOptions
from hud.train import payload_of
from hud.train.inputs import TrainingWarning, training_inputs

TEXTS = ["say red green blue yellow", "a e i o u"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 200)  # Answers differ in length, so that groups have spread.


@pytest.fixture
async def home(tmp_path, monkeypatch):
    async with policy_home(tmp_path, monkeypatch, TEXTS, SIZES) as folder:
        yield folder


@env.template()
async def flat_reward(word: str):
    yield f"say {word}"
    yield 1.0


@env.template()
async def equal_rewards(word: str):
    answer = yield f"say {word}"
    credit = zlib.crc32(answer.encode()) / 2**32  # Answers of equal length would have no spread.
    yield EvaluationResult(reward=0.5, turn_rewards=[credit])


@env.template()
async def fail(word: str):
    yield f"say {word}"
    raise RuntimeError("the grader broke")


def agent():
    return create_agent("m", completion_kwargs={"max_tokens": 10})


async def played(group=3, template=say):
    tasks = Taskset("words", [template(word=word) for word in ("red", "blue")])
    return (await tasks.run(agent(), group=group)).runs


async def test_runs_train_by_their_turns_and_recorded_ones_alike(home):
    runs = await played(template=equal_rewards)
    trainer = TrainingClient("m")
    by_run = await trainer.forward_backward(runs)
    assert by_run.metrics["turn_credited_runs:sum"] == len(runs)
    payloads = [payload_of(run.trace, run.reward, group_id=run.group_id) for run in runs]
    for batch in ([run.trace_id for run in runs], payloads):
        other = await trainer.forward_backward(batch)
        assert other.metrics == by_run.metrics
    with pytest.warns(TrainingWarning):
        alone = await trainer.forward_backward(runs, advantages=AdvantageOptions(turn_weight=0))
    assert (alone.num_datums, by_run.num_datums) == (0, len(runs))


@pytest.mark.slow
async def test_runs_train_and_trace_ids_mean_the_same(home):
    runs = await played()
    trainer = TrainingClient("m")
    by_run = await trainer.forward_backward(runs)
    mixed = [run if place % 2 else run.trace_id for place, run in enumerate(runs)]
    for batch in ([run.trace_id for run in runs], mixed, runs[::-1]):
        for size in (None, 3):
            found = await trainer.forward_backward(batch, group_size=size)
            for name in ("loss:sum", "action_tokens:sum", "reward:mean", "groups:sum"):
                assert by_run.metrics[name] == pytest.approx(found.metrics[name], abs=1e-6), name
    assert by_run.metrics["groups:sum"] == 2
    assert [datum.group_idx for datum in (await trainer.forward(runs)).data] == [0, 0, 0, 1, 1, 1]


async def test_in_one_process_samples_travel_by_trace_id_and_give_the_same_numbers(home):
    runs = await played()
    sent = training_inputs(runs, platform=connect())
    assert all(one.samples == [] and one.recorded is not None for one in sent.inputs)
    elsewhere = training_inputs(runs, platform=Client(api_url="http://elsewhere"))
    assert all(one.samples and one.recorded is None for one in elsewhere.inputs)
    trainer = TrainingClient("m")
    whole = [payload_of(run.trace, run.reward, group_id=run.group_id) for run in runs]
    assert (await trainer.forward(runs)).data == (await trainer.forward(whole)).data
    by_id, by_token = [
        (await trainer.forward_backward(batch, loss_fn="ppo")).metrics for batch in (runs, whole)
    ]
    assert by_id == by_token


async def test_a_run_learns_with_the_reward_it_has_now_and_never_with_other_tokens(home):
    runs = await played()
    trainer = TrainingClient("m")
    runs[0].grade = Grade(reward=5.0)
    found = await trainer.forward_backward(runs)
    assert found.metrics["reward:max"] == 5.0
    last = runs[0].trace.final("sample")
    last.output_token_ids = last.output_token_ids[:-1]
    last.output_logprobs = last.output_logprobs[:-1]
    with pytest.raises(
        UsageError, match=r"differ from its run.*payload_of\(run.trace, run.reward\)"
    ):
        await trainer.forward_backward(runs)
    runs = [payload_of(run.trace, run.reward, group_id=run.group_id) for run in runs]
    shorter = await trainer.forward_backward(runs)
    assert shorter.metrics["action_tokens:sum"] == found.metrics["action_tokens:sum"] - 1


async def test_a_group_size_that_contradicts_trace_ids_is_refused_where_their_groups_are_known(
    home,
):
    runs = await played()
    trainer = TrainingClient("m")
    with pytest.raises(UsageError, match=rf"group_size=2 .* group '{runs[0].group_id}' has 3 of 2"):
        await trainer.forward_backward([run.trace_id for run in runs], group_size=2)
    payloads = [payload_of(run.trace, run.reward) for run in runs]  # As HUD's client sends runs.
    with pytest.raises(UsageError, match="group_size=6 contradicts the runs"):
        await trainer.forward_backward(payloads, group_size=6)
    grouped = await trainer.forward_backward(payloads)
    assert grouped.metrics["groups:sum"] == 2


async def test_a_failed_run_leaves_its_group_by_trace_id_too(home):
    job = await Taskset("words", [say(word="red")]).run(agent(), group=4)
    broken = await Taskset("words", [fail(word="red")]).run(agent(), group=1, job=job)
    runs = [*job.runs[:4], *broken.runs[-1:]]
    trainer = TrainingClient("m")
    for batch in (runs, [run.trace_id for run in runs]):
        found = await trainer.forward_backward(batch, group_ids=["one"] * 5)
        assert (found.metrics["failed_runs:sum"], found.metrics["dropped_runs:sum"]) == (1, 1)
        assert found.metrics["reward:mean"] == pytest.approx(fmean(run.reward for run in runs[:4]))


async def test_a_step_without_signal_says_so_and_moves_nothing(home):
    trainer = TrainingClient("m")
    flat = (
        await Taskset("words", [flat_reward(word=word) for word in "abc"]).run(agent(), group=3)
    ).runs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = await trainer.step(flat, learning_rate=1e-3)
    assert str(result) == "step 0: reward 1.000, 0 of 3 groups had signal, nothing applied"
    assert (result.applied, result.groups, result.groups_with_signal) == (False, 3, 0)
    assert await trainer.checkpoints() == []
    assert (await trainer.head(), result.step) == (None, 0)

    runs = await played()
    for place, run in enumerate(runs):
        run.grade = Grade(reward=float(place % 2))
    learned = await trainer.step(runs, learning_rate=1e-3)
    assert str(learned) == "step 1: reward 0.500, 2 of 2 groups had signal"
    assert learned.applied
    later = await trainer.step(flat, learning_rate=1e-3)
    assert (later.applied, later.step, later.checkpoint_id) == (False, 1, learned.checkpoint_id)
    assert len(await trainer.checkpoints()) == 1


async def test_the_steps_of_a_script_are_a_training_run(home):
    trainer = TrainingClient("m")
    for _ in range(2):
        runs = await played()
        for place, run in enumerate(runs):
            run.grade = Grade(reward=float(place % 2))
        last = await trainer.step(runs, learning_rate=1e-3)
    (recorded,) = (await connect().get("/v2/training-runs"))["items"]
    assert (recorded["next_step"], recorded["status"]) == (2, "running")
    assert recorded["config"]["tasks"] == f"{runs[0].task.env}:{runs[0].task.id}"
    assert recorded["state"]["checkpoint"] == last.checkpoint_id
    assert runs[0].job_id in recorded["state"]["jobs"]
    steps = (await connect().get(f"/v2/training-runs/{recorded['id']}/steps"))["items"]
    assert [step["metrics"]["rollout_reward:mean"] for step in steps] == [0.5, 0.5]


async def recorded_steps():
    (recorded,) = (await connect().get("/v2/training-runs"))["items"]
    steps = await connect().get(f"/v2/training-runs/{recorded['id']}/steps")
    return recorded, [step["metrics"] for step in steps["items"]]


async def test_accumulated_passes_and_their_optimizer_step_are_a_training_run_like_any_other(home):
    trainer = TrainingClient("m")
    first, second = await played(), await played()
    for runs, reward in ((first, 1.0), (second, 0.5)):
        for place, run in enumerate(runs):
            run.grade = Grade(reward=reward * (place % 2))
        await trainer.forward_backward(runs)
    await trainer.optim_step(learning_rate=1e-3, weight_decay=0.1)
    recorded, steps = await recorded_steps()
    assert recorded["state"]["jobs"] == [first[0].job_id, second[0].job_id]
    assert recorded["config"]["loss"] == "importance_sampling"
    assert (recorded["config"]["learning_rate"], recorded["config"]["weight_decay"]) == (1e-3, 0.1)
    assert [step["rollout_reward:mean"] for step in steps] == [pytest.approx(0.375)]
    assert steps[0]["runs:sum"] == len(first) + len(second)

    # Steps without a checkpoint are steps of the run, too; a discarded gradient is in none.
    await trainer.forward_backward(first)
    await trainer.discard()
    await trainer.forward_backward(second)
    await trainer.optim_step(learning_rate=1e-3, save=False, measured_reward=0.125)
    await trainer.optim_step(learning_rate=1e-3, allow_empty=True)
    recorded, steps = await recorded_steps()
    assert recorded["next_step"] == 2
    assert (steps[1]["runs:sum"], steps[1]["rollout_reward:mean"]) == (len(second), 0.125)


async def test_a_loss_of_the_scripts_own_is_recorded(home):
    trainer = TrainingClient("m")
    runs = await played()
    await trainer.forward_backward_custom(
        runs, lambda data, logprobs: (-sum(part.sum() for part in logprobs), {"mine:sum": 2.0})
    )
    await trainer.optim_step(learning_rate=1e-3)
    recorded, steps = await recorded_steps()
    assert (recorded["config"]["loss"], recorded["state"]["jobs"]) == ("custom", [runs[0].job_id])
    assert steps[0]["mine:sum"] == 2.0


async def test_a_step_without_signal_applies_what_was_accumulated_before(home):
    trainer = TrainingClient("m")
    await trainer.forward_backward(await played())
    flat = (await Taskset("words", [flat_reward(word="a")]).run(agent(), group=2)).runs
    assert (await trainer.step(flat, learning_rate=1e-3)).applied


async def test_optim_step_alone_is_a_conflict_where_nothing_was_accumulated(home):
    trainer = TrainingClient("m")
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        await trainer.optim_step(learning_rate=1e-3)
    head = await trainer.optim_step(learning_rate=1e-3, allow_empty=True)
    assert (head.step, head.state_path) == (0, "")


async def test_the_trained_logprobs_are_the_sampled_ones(home):
    runs = await played()
    found = await TrainingClient("m").forward(runs)
    for datum in found.data:
        for lp, q, mask in zip(datum.logprobs, datum.sampling_logprobs, datum.mask, strict=True):
            assert lp == pytest.approx(q, abs=1e-4) or not mask


async def test_a_custom_loss_gives_the_gradient_of_the_built_in_one(home):
    import torch

    runs = await played()
    trainer = TrainingClient("m")
    await trainer.forward_backward(runs, loss_fn="importance_sampling")
    model = connect().embedded.parts.registry.model("m")
    session = connect().embedded.parts.sessions._open[model.id]
    expected = {name: g.clone() for name, g in session.trained.trainer.gradients().items()}
    await trainer.set_head("base")

    means = [fmean(run.reward for run in runs[start : start + 3]) for start in (0, 3)]

    def loss(data, leaves):
        total = torch.zeros(())
        for datum, lp in zip(data, leaves, strict=True):
            ratio = torch.exp(lp - torch.tensor(datum.sampling_logprobs))
            total = (
                total
                - ((datum.reward - means[datum.group_idx]) * ratio * torch.tensor(datum.mask)).sum()
            )
        return total, {"mine": total}

    result = await trainer.forward_backward_custom(runs, loss)
    assert "mine" in result.metrics
    for name, gradient in session.trained.trainer.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


async def test_step_head_and_checkpoints(home):
    trainer = TrainingClient("m")
    made = await trainer.step(await played(), learning_rate=1e-3)
    assert (await trainer.head()).id == made.checkpoint_id
    await trainer.step(await played(), learning_rate=1e-3)
    await trainer.set_head(made.checkpoint_id)
    assert [node.is_active for node in await trainer.checkpoints()] == [True, False]
    assert "ppo" in await trainer.available_losses()


async def test_a_slug_that_is_not_there_comes_with_close_matches_or_the_models(home):
    with pytest.raises(NotFoundError, match="did you mean 'm'"):
        await TrainingClient("mm").checkpoints()
    with pytest.raises(NotFoundError, match="no model 'other'; there is only 'm'"):
        await TrainingClient("other").checkpoints()


async def test_a_custom_loss_that_returns_anything_else_is_refused_with_a_cure(home):
    import torch

    runs = await played(group=2)
    trainer = TrainingClient("m")
    for loss_fn, says in (
        (lambda data, lps: lps[0].sum(), r"a tensor of shape \(\); return \(loss, metrics\)"),
        (lambda data, lps: None, "a NoneType; return"),
        (lambda data, lps: (lps[0], {}), r"one number.* it returned a tensor of shape \(\d+,\)"),
        (lambda data, lps: (torch.zeros(()), {}), "does not depend on the logprobs"),
        (lambda data, lps: (1.0, {}), "it returned a float"),
        (lambda data, lps: (lps[0].sum(), [1]), "a dictionary from names to numbers, not a list"),
        (lambda data, lps: (lps[0].sum(), {"x": lps[0]}), "metric 'x' of a custom loss"),
    ):
        with pytest.raises(UsageError, match=says):
            await trainer.forward_backward_custom(runs, loss_fn)


async def test_the_documented_loss_runs_as_printed(home):
    section = PAGE.partition("## Losses of your own")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    job = await Taskset("words", [say(word="red")]).run(agent(), group=3)
    names = {"job": job}
    code = compile(
        code.replace('"my-policy"', '"m"'), "losses.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    await eval(code, names)  # noqa: S307 - the documentation's own code
    assert names["found"].metrics["clipped_tokens:sum"] == 0.0, "the policy has not moved yet"
    assert names["result"].step == 1


@pytest.mark.slow
def test_the_client_needs_no_torch():
    code = "from hud.train.client import TrainingClient; import sys; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
