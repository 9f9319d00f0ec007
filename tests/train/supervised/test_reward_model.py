"""Reward models: the head and its gradient against autograd, training from pairs, and what such a model answers."""

import math
from types import SimpleNamespace

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.learn.small_decoder import SmallDecoder
from tests.platform.gateway.gateway_server import make_platform, serving
from tests.train.supervised.test_preferences import StopAfter
from tests.train.supervised.test_supervised_run import Notes
from tests.train.test_client_training import SIZES, TEXTS

from hud import Environment
from hud.agents import ScriptedAgent, create_agent
from hud.client import connect, disconnect
from hud.engine.learn.local_trainer import LocalTrainer
from hud.errors import GraderFault, UsageError
from hud.eval import Taskset
from hud.graders import RewardModelGrader
from hud.learning.datums import datums_of
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample
from hud.train.supervised.config import SupervisedConfig, make_supervised_config
from hud.train.supervised.held_out_pairs import PairAccuracy, split_pairs
from hud.train.supervised.preferences import Pair, PairTerm, pair_term, weighted_run
from hud.train.supervised.supervised_run import learn_from
from hud_platform.models.records import ModelConfig
from hud_platform.store.tables import LOCAL_TEAM

env = Environment("colours")
WORDS = ["red", "green", "blue", "yellow", "say red", "say blue", "red blue", "blue green"]


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield float(answer == word)


tasks = Taskset("colours", [say(word=word) for word in WORDS])
VALUES = {"loss": "bradley_terry", "batch": 2, "epochs": 8, "lr": 3e-3, "test_share": 0.25}


@pytest.fixture
async def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    sizes = {**SIZES, "max_context": 512}
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": sizes})
    yield folder
    disconnect(folder)


async def judge(name):
    body = {"source_model_id": "m", "name": name, "config": {"reward_model": True}}
    return await connect().post("/v2/models/fork", body)


async def recorded():
    answers = iter([text for word in WORDS for text in (word, "no")])
    return await tasks.run(ScriptedAgent(lambda run: next(answers)), group=2)


def conversation(word, answer):
    messages = [
        {"role": "user", "content": f"say {word}"},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages}


reward = st.floats(-300, 300)


@given(reward, reward, st.floats(-100, 100))
def test_a_pairs_loss_is_the_likelihood_of_bradley_and_terry(better, worse, shift):
    term = pair_term(1.0, (better, 0.0), (worse, 0.0))
    margin = torch.tensor(better - worse, dtype=torch.float64, requires_grad=True)
    loss = -torch.nn.functional.logsigmoid(margin)
    loss.backward()
    assert term.loss == pytest.approx(loss.item(), rel=1e-6, abs=1e-6)
    assert -term.weight == pytest.approx(margin.grad.item(), abs=1e-6)
    # Only differences of rewards have a meaning; both outcomes of a pair have probabilities that sum to 1.
    shifted = pair_term(1.0, (better + shift, 0.0), (worse + shift, 0.0))
    assert shifted.loss == pytest.approx(term.loss, rel=1e-6, abs=1e-6)
    other = pair_term(1.0, (worse, 0.0), (better, 0.0))
    assert math.exp(-term.loss) + math.exp(-other.loss) == pytest.approx(1, abs=1e-6)


def test_reward_loss_and_gradient_are_those_of_an_explicit_head():
    """A second implementation: h, a head that is the difference of two rows, and autograd, in float64."""
    good, bad = 5, 11
    torch.manual_seed(0)
    prompts = [torch.randint(0, 23, (length,)).tolist() for length in (9, 7, 12, 5)]
    pairs = [Pair(0, 1), Pair(3, 2)]
    oracle = SmallDecoder()

    def head_reward(prompt):
        ids = torch.tensor(prompt)
        bounds = torch.tensor([0, len(prompt)])
        hidden = oracle.hidden_packed(ids, torch.arange(len(prompt)), bounds)[-1]
        return 3 * hidden @ (oracle.head.weight[good] - oracle.head.weight[bad])

    expected = [head_reward(prompt) for prompt in prompts]
    margins = torch.stack([expected[pair.better] - expected[pair.worse] for pair in pairs])
    loss = -torch.nn.functional.logsigmoid(margins).mean()
    loss.backward()

    payloads = [
        TrajectoryPayload(
            samples=[
                TrajectorySample(
                    prompt_token_ids=prompt, output_token_ids=[token], weights=[weight]
                )
                for token, weight in ((good, 1.0), (bad, -1.0))
            ],
            reward=0.0,
        )
        for prompt in prompts
    ]
    decoder = SmallDecoder()
    trainer = LocalTrainer(decoder)
    rewards = []
    for payload in payloads:
        datums = datums_of(payload, supervised=True)
        rows = trainer.forward(datums)
        weighted = zip(datums, rows, strict=True)
        rewards.append(
            sum(float((datum.weights * row).sum(dtype="float64")) for datum, row in weighted)
        )
    assert rewards == pytest.approx([value.item() for value in expected], abs=1e-6)
    terms = [pair_term(1.0, (rewards[p.better], 0.0), (rewards[p.worse], 0.0)) for p in pairs]
    assert sum(term.loss for term in terms) / 2 == pytest.approx(loss.item(), abs=1e-6)
    batch = []
    for number, (pair, term) in enumerate(zip(pairs, terms, strict=True)):
        for place, sign in ((pair.better, 1), (pair.worse, -1)):
            run = weighted_run(payloads[place], sign * term.weight / 2)
            batch += datums_of(run, traj_idx=2 * number, supervised=True)
    trainer.forward_backward(batch, "cross_entropy")
    gradients = dict(decoder.named_parameters())
    for name, parameter in oracle.named_parameters():
        assert torch.allclose(gradients[name].grad, parameter.grad, rtol=0, atol=1e-6), name


@pytest.mark.slow
async def test_it_learns_the_pairs_rates_runs_and_a_stopped_run_ends_like_one_that_was_not(home):
    job = await recorded()
    for name in ("straight", "stopped"):
        await judge(name)
    notes = Notes()
    config = SupervisedConfig(model="straight", jobs=[job.id], **VALUES)
    straight = await learn_from(config, tasks=tasks, reporter=notes)
    assert straight.finished
    assert straight.last_loss < 0.3 < straight.first_loss
    assert (straight.held_out_accuracy.pairs, straight.held_out_accuracy.mean) == (2, 1.0)
    assert any("held-out accuracy at step 0" in text for text in notes.texts)
    assert any("accuracy at step 24: 1.000" in text for text in notes.texts)

    until = StopAfter(5)
    config = SupervisedConfig(model="stopped", jobs=[job.id], **VALUES)
    first = await learn_from(config, tasks=tasks, reporter=until, stop=until.stop)
    assert (first.next_step, first.finished) == (5, False)
    rest = await learn_from(config, tasks=tasks)
    assert rest.last_loss == pytest.approx(straight.last_loss, abs=1e-5)

    body = {"conversations": [conversation("red", "red"), conversation("red", "no")]}
    rates = {
        name: (await connect().post(f"/v2/models/{name}/rewards", body))["rewards"]
        for name in ("straight", "stopped")
    }
    right, wrong = rates["straight"]
    assert right > wrong
    assert rates["stopped"] == pytest.approx(rates["straight"], abs=1e-4)


async def test_it_learns_what_people_prefer_whatever_the_rewards(home):
    job = await recorded()
    await judge("j")
    for word in WORDS:
        of_task = [run for run in job.runs if run.task.args["word"] == word]
        right, wrong = sorted(of_task, key=lambda run: -run.reward)
        body = {"left": right.trace_id, "right": wrong.trace_id, "name": "briefer"}
        await connect().post("/v2/comparisons", {**body, "choice": "right"})
    config = SupervisedConfig(model="j", jobs=[job.id], pairs="people:briefer", **VALUES)
    report = await learn_from(config, tasks=tasks)
    assert (report.held_out_accuracy.pairs, report.held_out_accuracy.mean) == (2, 1.0)
    body = {"conversations": [conversation("red", "red"), conversation("red", "no")]}
    right, wrong = (await connect().post("/v2/models/j/rewards", body))["rewards"]
    assert right < wrong


async def test_a_policy_rates_nothing_and_a_reward_model_answers_nothing(home):
    await judge("j")
    job = await recorded()
    with pytest.raises(UsageError, match="'m' is no reward model"):
        await connect().post("/v2/models/m/rewards", {"conversations": [conversation("a", "b")]})
    with pytest.raises(UsageError, match="'m' is no reward model"):
        await learn_from(SupervisedConfig(model="m", jobs=[job.id], **VALUES), tasks=tasks)
    with pytest.raises(UsageError, match="'j' is a reward model, which learns from pairs"):
        await learn_from(SupervisedConfig(model="j", jobs=[job.id]), tasks=tasks)
    with pytest.raises(UsageError, match="'j' is a reward model, which rates runs and answers no"):
        await tasks.run(create_agent("j"))
    body = {"model": "j", "messages": [{"role": "user", "content": "say red"}]}
    with pytest.raises(UsageError, match="'j' is a reward model, which rates runs and answers no"):
        await connect().post("/v1/chat/completions", body)


async def test_a_fork_of_a_reward_model_is_one_trained_like_its_base(home):
    lora = {"training": "lora", "lora_rank": 4}
    body = {"source_model_id": "m", "name": "l", "config": lora}
    await connect().post("/v2/models/fork", body)
    body = {"source_model_id": "l", "name": "j", "config": {"reward_model": True}}
    made = (await connect().post("/v2/models/fork", body))["config"]
    assert (made["reward_model"], made["training"], made["lora_rank"]) == (True, "lora", 4)
    again = await connect().post("/v2/models/fork", {"source_model_id": "j", "name": "k"})
    assert again["config"]["reward_model"]


def test_the_accuracy_counts_equal_rewards_a_half_and_has_an_interval_over_tasks():
    def terms(*margins):
        return [PairTerm(margin, 0.0, 0.0) for margin in margins]

    accuracy = PairAccuracy.of([terms(1.0, -1.0), terms(2.0), terms(0.0)])
    assert (accuracy.mean, accuracy.pairs) == (0.625, 4)
    assert accuracy.low < 0.625 < accuracy.high
    assert PairAccuracy.of([terms(1.0)]).low is None


@given(st.integers(1, 30), st.floats(0, 0.9), st.integers(0, 5))
def test_a_tasks_pairs_are_all_trained_on_or_all_held_out(count, share, seed):
    trace = SimpleNamespace(steps=[], content="")
    examples = [
        SimpleNamespace(task=SimpleNamespace(key=("t", place // 2)), trace=trace)
        for place in range(count)
    ]
    pairs = [Pair(place, place) for place in range(count)]
    config = SupervisedConfig(model="m", loss="bradley_terry", test_share=share, seed=seed)
    trained, held_out = split_pairs(pairs, SimpleNamespace(examples=examples), config)
    tasks_of = lambda some: {pair.better // 2 for pair in some}  # noqa: E731
    flat = [pair for task in held_out for pair in task]
    assert sorted(pair.better for pair in [*trained, *flat]) == list(range(count))
    assert not tasks_of(trained) & tasks_of(flat)
    assert trained
    assert bool(flat) == (share > 0 and count > 2)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"loss_config": {"beta": 1.0}}, "'bradley_terry' takes no key 'beta'"),
        ({"best_of": 2}, "bradley_terry compares the runs of a task, so best_of has no meaning"),
    ],
)
def test_settings_that_a_reward_model_does_not_have_are_refused(values, sentence):
    with pytest.raises(UsageError, match=sentence):
        make_supervised_config({"model": "m", "loss": "bradley_terry", **values})


async def test_it_grades_over_a_platforms_address_and_what_it_cannot_read_scores_0(
    tmp_path, monkeypatch
):
    app = make_platform(tmp_path / "home")
    registry = app.state.parts.registry.of(LOCAL_TEAM)
    registry.fork("tiny", "j", config=ModelConfig(reward_model=True))
    with serving(app) as url:
        monkeypatch.setenv("HUD_API_URL", url)
        score = await RewardModelGrader.grade(model="j", question="say red", answer="red")
        body = {"conversations": [conversation("red", "red")]}
        async with httpx.AsyncClient(timeout=60) as client:
            reply = (await client.post(f"{url}/v2/models/j/rewards", json=body)).json()
        assert score.info["reward"] == pytest.approx(reply["rewards"][0], abs=1e-4)
        assert score.value == pytest.approx(1 / (1 + math.exp(-reply["rewards"][0])), abs=1e-4)
        for answer in ("red " * 1000, "\ud800"):
            unread = await RewardModelGrader.grade(model="j", question="say red", answer=answer)
            assert unread.value == 0.0
            assert unread.info["reason"]
        with pytest.raises(GraderFault, match="'tiny' rates nothing"):
            await RewardModelGrader.grade(model="tiny", question="q", answer="a")
        with pytest.raises(GraderFault, match="could not be asked"):
            await RewardModelGrader.grade(model="absent", question="q", answer="a")


async def test_without_a_platform_the_grader_names_the_setting(home, monkeypatch):
    monkeypatch.chdir(home.parent)
    with pytest.raises(GraderFault, match="HUD_API_URL"):
        await RewardModelGrader.grade(model="j", answer="a")
