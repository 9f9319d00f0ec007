"""DPO: its terms against torch, its gradient against autograd, and a training that prefers what was better."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.learn.small_decoder import SmallDecoder, random_datum
from tests.train.supervised.test_supervised_run import Notes, tasks
from tests.train.test_client_training import home

from hud.agents import ScriptedAgent
from hud.client import connect
from hud.engine.learn.local_trainer import LocalTrainer
from hud.errors import UsageError
from hud.eval import StopSignal
from hud.train import TrajectoryPayload, TrajectorySample
from hud.train.monitoring.loss_metrics import PAIR_LOSS
from hud.train.monitoring.progress import Reporter
from hud.train.supervised.config import SupervisedConfig, make_supervised_config
from hud.train.supervised.preferences import (
    Pair,
    Preferences,
    pair_term,
    pairs_of,
    weighted_by_task,
)
from hud.train.supervised.supervised_run import learn_from

__all__ = ["home"]

logprob = st.floats(-300, 0)


def torch_loss(beta, better, worse):
    """Equation 7 of arXiv 2305.18290, as torch computes it."""
    margin = (better[0] - better[1]) - (worse[0] - worse[1])
    return -torch.nn.functional.logsigmoid(beta * margin)


@given(st.floats(0.01, 5), st.tuples(logprob, logprob), st.tuples(logprob, logprob))
def test_a_term_and_its_weight_are_those_of_torch(beta, better, worse):
    leaves = torch.tensor([better[0], worse[0]], dtype=torch.float64, requires_grad=True)
    loss = torch_loss(beta, (leaves[0], better[1]), (leaves[1], worse[1]))
    loss.backward()
    term = pair_term(beta, better, worse)
    assert term.loss == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert leaves.grad.tolist() == pytest.approx([-term.weight, term.weight], abs=1e-6)


def test_the_gradient_of_the_weights_is_that_of_autograd():
    rng = np.random.default_rng(0)
    datums = [random_datum(rng, traj_idx=number) for number in range(4)]
    trainer = LocalTrainer(SmallDecoder())
    reference = [row.sum() for row in LocalTrainer(SmallDecoder(seed=1)).forward(datums)]
    rows = trainer.forward(datums)
    leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]
    sums = [leaf.sum() for leaf in leaves]
    pairs = [(0, 1), (3, 2)]
    losses = [
        torch_loss(0.5, (sums[better], reference[better]), (sums[worse], reference[worse]))
        for better, worse in pairs
    ]
    (sum(losses) / len(losses)).backward()
    for better, worse in pairs:
        sides = [(sums[place].item(), float(reference[place])) for place in (better, worse)]
        weight = pair_term(0.5, *sides).weight / len(pairs)
        for place, sign in ((better, 1), (worse, -1)):
            expected = np.full(len(rows[place]), sign * weight)
            assert -leaves[place].grad.numpy() == pytest.approx(expected, abs=1e-6)


class StopAfter(Reporter):
    def __init__(self, step):
        self.stop, self.step = StopSignal(), step

    def stepped(self, step, metrics):
        if step + 1 == self.step:
            self.stop.request()


async def recorded(answers):
    given_answers = iter(answers)
    job = await tasks.run(ScriptedAgent(lambda run: next(given_answers)), group=2)
    return job, sorted({run.reward for run in job.runs})


@pytest.mark.slow
async def test_the_policy_learns_to_prefer_and_a_stopped_run_ends_like_one_that_was_not(home):
    words = [task.args["word"] for task in tasks]
    job, rewards = await recorded([text for word in words for text in (word, "no")])
    assert len(rewards) == 2
    for name in ("stopped", "straight"):
        await connect().post("/v2/models/fork", {"source_model_id": "m", "name": name})
    values = {"jobs": [job.id], "loss": "dpo", "batch": 1, "epochs": 3, "lr": 1e-2}
    notes = Notes()
    straight = await learn_from(
        SupervisedConfig(model="straight", **values), tasks=tasks, reporter=notes
    )
    assert straight.first_loss == pytest.approx(math.log(2), abs=1e-5)
    assert straight.last_loss < 0.6
    assert f"pairs of the best and the worst run of a task: {len(words)}" in notes.texts
    assert (straight.steps, straight.finished) == (3 * len(words), True)

    until = StopAfter(2)
    config = SupervisedConfig(model="stopped", **values)
    first = await learn_from(config, tasks=tasks, reporter=until, stop=until.stop)
    assert (first.next_step, first.finished) == (2, False)
    rest = await learn_from(config, tasks=tasks)
    assert rest.last_loss == pytest.approx(straight.last_loss, abs=1e-5)


async def test_without_a_pair_nothing_is_trained(home):
    job, _ = await recorded(["no"] * 2 * len(list(tasks)))
    config = SupervisedConfig(model="m", jobs=[job.id], loss="dpo")
    with pytest.raises(UsageError, match="No task has two runs with different rewards"):
        await learn_from(config, tasks=tasks)


async def compare(left, right, rater):
    body = {"left": left, "right": right, "choice": "left", "rater": rater}
    await connect().post("/v2/comparisons", body)


async def test_people_decide_against_the_rewards_by_majority(home):
    words = [task.args["word"] for task in tasks]
    job, _ = await recorded([text for word in words for text in (word, "no")])
    config = SupervisedConfig(
        model="m", jobs=[job.id], loss="dpo", pairs="people", batch=1, steps=6, lr=1e-2
    )
    with pytest.raises(UsageError, match="People prefer none of these runs over another by 'bett"):
        await learn_from(config, tasks=tasks)
    by_task = {word: [run for run in job.runs if run.task.args["word"] == word] for word in words}
    for number, runs in enumerate(by_task.values()):
        right, wrong = sorted(runs, key=lambda run: -run.reward)
        await compare(wrong.trace_id, right.trace_id, "ana")
        if number:
            for rater in ("bo", "cleo"):
                await compare(wrong.trace_id, right.trace_id, rater)
            await compare(right.trace_id, wrong.trace_id, "dan")
        else:  # As many for as against.
            await compare(right.trace_id, wrong.trace_id, "bo")
    notes = Notes()
    for name, pairs in (("people", "people"), ("rewards", "rewards")):
        await connect().post("/v2/models/fork", {"source_model_id": "m", "name": name})
        of_model = config.model_copy(update={"model": name, "pairs": pairs})
        report = await learn_from(of_model, tasks=tasks, reporter=notes)
        assert report.first_loss == pytest.approx(math.log(2), abs=1e-5)
        assert report.last_loss < 0.6
    assert f"pairs of runs that people compared by 'better': {len(words) - 1}" in notes.texts

    # What was learned from people is the opposite of what the rewards teach.
    right = [run for run in job.runs if run.reward == max(run.reward for run in job.runs)]
    logprobs = {}
    for name in ("people", "rewards"):
        config = SupervisedConfig(model=name, batch=64, lr=1e-9)
        logprobs[name] = -(await learn_from(config, right, fresh=True)).first_loss
    assert logprobs["people"] < logprobs["rewards"] - 0.1


async def test_a_comparison_that_is_added_begins_another_run(home):
    words = [task.args["word"] for task in tasks]
    job, _ = await recorded([text for word in words for text in (word, "no")])
    by_task = [
        [run.trace_id for run in job.runs if run.task.args["word"] == word] for word in words
    ]
    config = SupervisedConfig(
        model="m", jobs=[job.id], loss="dpo", pairs="people", batch=1, steps=4, lr=1e-3
    )
    await compare(*by_task[0], "ana")
    until = StopAfter(2)
    first = await learn_from(config, tasks=tasks, reporter=until, stop=until.stop)
    assert (await learn_from(config, tasks=tasks)).first_step == 2
    await compare(*by_task[1], "ana")
    again = await learn_from(config, tasks=tasks)
    assert (again.first_step, again.run_id != first.run_id) == (0, True)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"pairs": "people"}, "pairs=people goes with the losses dpo and bradley_terry"),
        ({"loss": "dpo", "pairs": "others"}, "pairs: String should match"),
        ({"loss": "dpo", "loss_config": {"gamma": 1.0}}, "takes no key 'gamma'; it takes: beta"),
        ({"loss": "dpo", "loss_config": {"beta": 0.0}}, "beta is 0.0; it must be above 0"),
        ({"loss": "dpo", "min_reward": 0.5}, "min_reward has no meaning"),
        ({"loss_config": {"beta": 0.1}}, "'cross_entropy' takes no key 'beta'"),
    ],
)
def test_settings_that_dpo_does_not_have_are_refused(values, sentence):
    with pytest.raises(UsageError, match=sentence):
        make_supervised_config({"model": "m", **values})


def rated(*groups):
    """Runs with rewards; each group is those of one task."""
    return SimpleNamespace(
        examples=[
            SimpleNamespace(reward=reward, task=SimpleNamespace(key=task), pair=None)
            for task, rewards in enumerate(groups)
            for reward in rewards
        ]
    )


def test_several_pairs_of_a_task_match_the_best_with_the_worst_inwards():
    runs = rated((0.1, 0.9, 0.5, 0.4, None), (1.0, 1.0, 0.0), (0.3, 0.3))
    assert pairs_of(runs) == [Pair(1, 0), Pair(5, 7)]
    assert pairs_of(runs, 8) == [Pair(1, 0), Pair(2, 3), Pair(5, 7)]


@given(st.lists(st.floats(0, 1), max_size=12), st.integers(1, 8))
def test_no_run_is_in_two_pairs_and_a_better_one_is_better(rewards, most):
    try:
        pairs = pairs_of(rated(rewards), most)
    except UsageError:
        assert len(set(rewards)) < 2
        return
    assert len(pairs) <= min(most, len(rewards) // 2)
    places = [place for pair in pairs for place in (pair.better, pair.worse)]
    assert len(set(places)) == len(places)
    assert all(rewards[pair.better] > rewards[pair.worse] for pair in pairs)
    assert pairs[0] == pairs_of(rated(rewards))[0]


async def test_the_gradient_is_of_the_mean_over_tasks_of_the_mean_over_their_pairs():
    runs = rated((1.0, 0.8, 0.2, 0.0, 0.9, 0.1), (1.0, 0.0))
    pairs = weighted_by_task(pairs_of(runs, 3), runs)
    assert len(pairs) == 4
    payloads = [
        TrajectoryPayload(
            samples=[TrajectorySample(prompt_token_ids=[1], output_token_ids=[2])], reward=0.0
        )
        for _ in runs.examples
    ]
    sums = torch.linspace(-4, -1, 8, dtype=torch.float64, requires_grad=True)

    async def logprob_of(payload):
        return sums[next(p for p, own in enumerate(payloads) if own is payload)].item()

    learner = SimpleNamespace(config=SimpleNamespace(beta=0.5), logprob_of=logprob_of)
    weighted, metrics = await Preferences(learner, payloads).weighted(pairs)

    losses = [torch_loss(0.5, (sums[pair.better], 0.0), (sums[pair.worse], 0.0)) for pair in pairs]
    loss = (sum(losses[:3]) / 3 + losses[3]) / 2
    loss.backward()
    assert metrics[PAIR_LOSS] == pytest.approx(loss.item(), abs=1e-12)
    places = [place for pair in pairs for place in (pair.better, pair.worse)]
    for place, run in zip(places, weighted, strict=True):
        # cross_entropy descends the negative of its token weights.
        assert -run.samples[0].weights[0] == pytest.approx(sums.grad[place].item(), abs=1e-12)


def test_pairs_of_a_task_are_those_of_rewards():
    with pytest.raises(UsageError, match="pairs_per_task goes with the losses dpo"):
        make_supervised_config({"model": "m", "pairs_per_task": 2})
    with pytest.raises(UsageError, match="pairs_per_task goes with the losses dpo"):
        make_supervised_config(
            {"model": "m", "loss": "dpo", "pairs": "people", "pairs_per_task": 2}
        )
