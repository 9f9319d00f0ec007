"""`TrainingClient` over the platform of this process, on runs that its own policy played."""

import subprocess
import sys

import pytest

from hud import Environment, TrainingClient
from hud.agents import create_agent
from hud.client import connect, disconnect
from hud.errors import NotFoundError, UsageError
from hud.eval import Taskset

TEXTS = ["say red green blue yellow", "a e i o u"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}

env = Environment("vowels")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 200)  # Answers differ in length, so that groups have spread.


@pytest.fixture
async def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": SIZES})
    yield folder
    disconnect(folder)


async def played(group=3):
    agent = create_agent("m", completion_kwargs={"max_tokens": 10})
    tasks = Taskset("words", [say(word=word) for word in ("red", "blue")])
    return (await tasks.run(agent, group=group)).runs


async def test_runs_train_and_trace_ids_mean_the_same(home):
    runs = await played()
    trainer = TrainingClient("m")
    by_run = await trainer.forward_backward(runs, group_size=3)
    by_id = await trainer.forward_backward(
        [run.trace_id for run in runs], group_ids=[run.group_id for run in runs]
    )
    for name in ("loss:sum", "action_tokens:sum", "reward:mean"):
        assert by_run.metrics[name] == pytest.approx(by_id.metrics[name], abs=1e-6), name


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
    model = connect().embedded.platform.registry.model("m")
    session = connect().embedded.platform.sessions._open[model.id]
    expected = {name: g.clone() for name, g in session.trained.trainer.gradients().items()}
    await trainer.set_head("base")

    mean = sum(run.reward for run in runs) / len(runs)

    def loss(data, leaves):
        total = torch.zeros(())
        for datum, lp in zip(data, leaves, strict=True):
            ratio = torch.exp(lp - torch.tensor(datum.sampling_logprobs))
            total = total - ((datum.reward - mean) * ratio * torch.tensor(datum.mask)).sum()
        return total, {"mine": total}

    result = await trainer.forward_backward_custom(runs, loss)
    assert "mine" in result.metrics
    for name, gradient in session.trained.trainer.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


async def test_step_head_and_checkpoints(home):
    trainer = TrainingClient("m")
    made = await trainer.step(await played(), learning_rate=1e-3, group_size=3)
    assert (await trainer.head()).id == made.checkpoint_id
    await trainer.step(await played(), learning_rate=1e-3, group_size=3)
    await trainer.set_head(made.checkpoint_id)
    assert [node.is_active for node in await trainer.checkpoints()] == [True, False]
    assert "ppo" in await trainer.available_losses()


async def test_a_slug_that_is_not_there_comes_with_close_matches(home):
    with pytest.raises(NotFoundError, match="did you mean|there are 'm'"):
        await TrainingClient("mm").checkpoints()


async def test_a_custom_loss_that_is_no_number_is_refused(home):
    runs = await played()
    with pytest.raises(UsageError, match="must be one number"):
        await TrainingClient("m").forward_backward_custom(runs, lambda data, lps: (lps[0], {}))


def test_the_client_needs_no_torch():
    code = "from hud.train.client import TrainingClient; import sys; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
