"""The official `TrainingClient`, from rollouts through our gateway to checkpoints that serve."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.slow

ROLLOUTS = """
import asyncio, json
from hud import LocalRuntime, Taskset, TrainingClient
from hud.agents import create_agent
from env import tasks

async def rollouts(model, group=4):
    agent = create_agent(
        model,
        max_steps=2,
        completion_kwargs={"max_tokens": 24, "extra_body": {"return_token_ids": True}},
    )
    taskset = Taskset("words", tasks[:2])
    return await taskset.run(agent, runtime=LocalRuntime("env.py"), group=group, max_concurrent=8)
"""


@pytest.fixture
def learner(server, request):
    """A model of the test's own."""
    name = request.node.name.removeprefix("test_")[:20].strip("_").replace("_", "-")
    server.create_model(name)
    return name


def checkpoints(server, name):
    return server.get(f"/v2/models/{server.model(name)['id']}/checkpoints")


def test_a_step_learns_from_runs_and_serves_what_it_learned(official, server, learner):
    done = official.python(
        ROLLOUTS
        + f"""
async def main():
    job = await rollouts({learner!r})
    trainer = TrainingClient({learner!r})
    losses = await trainer.available_losses()
    first = await trainer.step(job.runs, learning_rate=1e-3, group_size=4)
    again = await rollouts({learner!r})
    second = await trainer.step(again.runs, learning_rate=1e-3, group_size=4, loss_fn="ppo",
                                loss_fn_config={{"epsilon": 0.2}}, num_substeps=2)
    head = await trainer.head()
    print(json.dumps({{
        "losses": losses,
        "steps": [first.step, second.step],
        "checkpoints": [first.checkpoint_id, second.checkpoint_id],
        "model": second.model,
        "head": head.id,
        "jobs": [job.id, again.id],
        "rewards": [[run.reward for run in each.runs] for each in (job, again)],
    }}))
asyncio.run(main())
"""
    )
    assert {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro"} <= set(done["losses"])
    assert (done["steps"], done["model"]) == ([1, 2], learner)
    first, second = checkpoints(server, learner)
    assert [first["id"], second["id"]] == done["checkpoints"]
    assert second["prev_model_checkpoint_id"] == first["id"]
    assert (second["is_active"], second["id"]) == (True, done["head"])
    assert second["mean_reward"] == pytest.approx(sum(done["rewards"][1]) / 8)
    for job, rewards in zip(done["jobs"], done["rewards"], strict=True):
        traces = server.get(f"/v2/jobs/{job}/traces")["items"]
        assert sorted(trace["reward"] for trace in traces) == pytest.approx(sorted(rewards))
    # What the second job's runs were sampled with is the checkpoint that the first step made.
    full = server.get(f"/v2/trace/{traces[0]['trace_id']}/full")["trace"]
    (sample,) = [step["sample"] for step in full["steps"] if step.get("sample")]
    assert len(sample["output_token_ids"]) == len(sample["output_logprobs"]) > 0


def test_gradients_accumulate_over_calls_and_trace_ids_stand_for_runs(official, server, learner):
    done = official.python(
        ROLLOUTS
        + f"""
async def main():
    job = await rollouts({learner!r})
    trainer = TrainingClient({learner!r})
    by_run = await trainer.forward_backward(job.runs[:4], loss_fn="cispo", group_size=4)
    by_id = await trainer.forward_backward(
        [run.trace_id for run in job.runs[4:]], loss_fn="cispo", group_size=4, reward_scale=0.5)
    step = await trainer.optim_step(learning_rate=1e-3, weight_decay=0.01)
    print(json.dumps({{
        "datums": [by_run.num_datums, by_id.num_datums],
        "metrics": by_id.metrics,
        "checkpoint": step.checkpoint_id,
    }}))
asyncio.run(main())
"""
    )
    assert done["datums"] == [4, 4]
    assert "loss:sum" in done["metrics"]
    (only,) = checkpoints(server, learner)
    assert (only["id"], only["num_traces"]) == (done["checkpoint"], 8)


def test_a_loss_of_ones_own_goes_forward_and_backward(official, server, learner):
    done = official.python(
        ROLLOUTS
        + f"""
async def main():
    job = await rollouts({learner!r})
    trainer = TrainingClient({learner!r})
    there = await trainer.forward(job.runs, group_size=4)
    weights = [
        [weight * (datum.reward - 0.5) for weight in datum.mask] for datum in there.data
    ]
    back = await trainer.backward(there.forward_id, weights, metrics={{"mine": 7.0}})
    step = await trainer.optim_step(learning_rate=1e-3)
    print(json.dumps({{
        "data": [
            [datum.reward, datum.traj_idx, datum.group_idx, len(datum.logprobs),
             len(datum.sampling_logprobs), sum(datum.mask),
             max(abs(a - b) * m for a, b, m in
                 zip(datum.logprobs, datum.sampling_logprobs, datum.mask))]
            for datum in there.data
        ],
        "rewards": [run.reward for run in job.runs],
        "metrics": back.metrics,
        "datums": back.num_datums,
        "checkpoint": step.checkpoint_id,
    }}))
asyncio.run(main())
"""
    )
    assert done["datums"] == len(done["data"]) == 8
    assert [datum[0] for datum in done["data"]] == pytest.approx(done["rewards"])
    assert [datum[1] for datum in done["data"]] == list(range(8))
    assert [datum[2] for datum in done["data"]] == [0] * 4 + [1] * 4
    for _, _, _, length, sampled, actions, apart in done["data"]:
        assert length == sampled
        assert actions > 0
        assert apart < 1e-3  # The policy has not moved since it sampled.
    assert done["metrics"]["mine"] == 7.0
    assert checkpoints(server, learner)[0]["id"] == done["checkpoint"]


def test_the_head_moves_back_and_training_branches_from_there(official, server, learner):
    done = official.python(
        ROLLOUTS
        + f"""
async def main():
    trainer = TrainingClient({learner!r})
    made = []
    for _ in range(2):
        job = await rollouts({learner!r})
        made.append((await trainer.step(job.runs, learning_rate=1e-3, group_size=4)).checkpoint_id)
    await trainer.set_head(made[0])
    assert (await trainer.head()).id == made[0]
    job = await rollouts({learner!r})
    made.append((await trainer.step(job.runs, learning_rate=1e-3, group_size=4)).checkpoint_id)
    print(json.dumps({{"made": made, "seen": [one.id for one in await trainer.checkpoints()]}}))
asyncio.run(main())
"""
    )
    first, second, branch = done["made"]
    assert sorted(done["seen"]) == sorted(done["made"])
    parents = {one["id"]: one["prev_model_checkpoint_id"] for one in checkpoints(server, learner)}
    assert parents == {first: None, second: first, branch: first}
    # And the same by the commands.
    listed = official.json("models", "checkpoints", learner)
    assert {one["id"] for one in listed} == set(done["made"])
    tree = official.hud("models", "checkpoints", learner)
    assert "▶" in tree
    assert official.json("models", "head", learner)["head"]["id"] == branch
    official.hud("models", "head", learner, "--set", second, "--yes")
    assert official.json("models", "head", learner)["head"]["id"] == second
    active = [one["id"] for one in checkpoints(server, learner) if one["is_active"]]
    assert active == [second]


def test_mistakes_are_told_in_the_servers_words(official, server, learner):
    done = official.python(
        ROLLOUTS
        + f"""
async def said(call):
    try:
        await call
    except Exception as error:
        return str(error)
    return "nothing"

async def main():
    job = await rollouts({learner!r})
    trainer = TrainingClient({learner!r})
    told = {{
        "loss": await said(trainer.forward_backward(job.runs, loss_fn="pppo", group_size=4)),
        "empty": await said(trainer.optim_step(learning_rate=1e-3)),
        "trace": await said(trainer.forward_backward(["f" * 32], loss_fn="ppo")),
        "head": await said(trainer.set_head("0" * 32)),
        "forward": await said(trainer.backward("0" * 32, [[0.0]])),
    }}
    print(json.dumps(told))
asyncio.run(main())
"""
    )
    assert "no loss 'pppo'" in done["loss"]
    assert "409" in done["empty"] or "400" in done["empty"]
    assert "f" * 32 in done["trace"]
    assert "404" in done["head"]
    # A status, not three digits of an id.
    assert not [text for text in done.values() if re.search(r"\b500\b", text)]
    assert checkpoints(server, learner) == []
