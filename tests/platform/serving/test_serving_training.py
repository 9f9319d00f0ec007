"""Training in an engine's process: nothing acknowledged is lost when it, or the whole server, is killed."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import httpx
import pytest
from tests.platform.serving.engine_server import SIZES, TEXTS, drawn, engine_of, request
from tests.platform.serving.test_serving_streams import revived, until

from hud.errors import ConflictError, HudError, NotFoundError, UsageError
from hud.learning.training_calls import Conversation, OpenRequest, RenderRequest
from hud.learning.wire_types import BackwardRequest, ForwardBackwardRequest, OptimStepRequest
from hud.processes.backoff import Backoff
from hud.train import TrajectoryPayload, TrajectorySample
from hud_platform.serving import remote
from hud_platform.serving.calls import ForgetModel, MoveHead
from hud_platform.serving.token_engine import EngineDownError
from hud_platform.store.tables import LOCAL_TEAM

pytestmark = pytest.mark.timeout(180)

SERVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from hud_platform.process.config import PlatformConfig
    from hud_platform.server import serve

    def announce(address, key):
        print(address.url, flush=True)

    serve(PlatformConfig(Path(sys.argv[1]), engine="worker"), "127.0.0.1", 0, announce)
    """
)


def batch(seed=0, size=2):
    """Runs that the model might have had; every second one was worth something."""
    return [
        TrajectoryPayload(
            samples=[
                TrajectorySample(
                    prompt_token_ids=[5, 6, 7],
                    output_token_ids=[8 + seed, 9, 10 + place],
                    output_logprobs=[-5.0, -5.0, -5.0],
                )
            ],
            reward=float(place % 2),
        )
        for place in range(size)
    ]


def a_pass(seed=0, key=None):
    return ForwardBackwardRequest(
        inputs=batch(seed), loss_fn="importance_sampling", idempotency_key=key
    )


def a_step(key=None, **fields):
    return OptimStepRequest(learning_rate=1e-2, idempotency_key=key, **fields)


async def ask(engine, model, body, *client):
    return json.loads(await engine.call(model, body, *client))


async def killed(engine, model):
    """Kill the engine, and wait until it draws again."""
    os.kill(engine.engine_of(model).pid, signal.SIGKILL)

    async def noticed():
        return not engine.up

    await until(noticed)
    await revived(engine, model)


@pytest.mark.slow
async def test_a_step_in_the_other_process_moves_what_it_serves(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        before = await drawn(engine, model, request(seed=1, temperature=0))
        done = await ask(engine, model, a_pass())
        assert done["num_datums"] == 2
        made = await ask(engine, model, a_step("one"))
        record = platform.registry.model("m")
        assert record.head_checkpoint_id == made["checkpoint_id"]
        after = await drawn(engine, record, request(seed=1))
        assert (before[3].version, after[3].version) == (None, made["checkpoint_id"])
        assert await ask(engine, model, a_step("one")) == made
        with pytest.raises(ConflictError, match="Nothing was accumulated"):
            await ask(engine, model, a_step("two"))
        with pytest.raises(NotFoundError, match="no forward pass"):
            await ask(engine, model, BackwardRequest(forward_id="x", weights=[]))
        await engine.call(record, MoveHead(checkpoint=None))
        again = await drawn(engine, platform.registry.model("m"), request(seed=1, temperature=0))
        assert again[0] == before[0]


NAN = float("nan")
ODD_NUMBERS = [
    ({"weights": [NAN, 1.0, 1.0]}, {"loss_fn": "cross_entropy"}, "loss is nan"),
    ({"temperature": NAN}, {}, "has temperature nan"),
    ({"output_token_ids": [2**63 - 1, 9, 10]}, {}, "another tokenizer"),
    ({}, {"loss_fn": "ppo", "loss_fn_config": {"clip_low": NAN}}, "clip_low"),
    ({}, {"reward_scale": float("inf")}, "loss is nan"),
]


@pytest.mark.slow
async def test_numbers_that_are_not_finite_are_refused_by_the_other_process_with_the_reason(
    tmp_path,
):
    async with engine_of(tmp_path, "worker") as (platform, model):
        for sample, fields, reason in ODD_NUMBERS:
            runs = [run.model_copy(deep=True) for run in batch()]
            for name, value in sample.items():
                setattr(runs[0].samples[0], name, value)
            with pytest.raises(HudError, match=reason) as refused:
                await platform.engine.call(model, ForwardBackwardRequest(inputs=runs, **fields))
            assert refused.value.status < 500
        runs = batch()
        runs[0].reward = NAN
        with pytest.raises(UsageError):
            await platform.engine.call(model, ForwardBackwardRequest(inputs=runs))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [230, 300])
async def test_a_request_that_is_nested_too_deep_is_the_requester_s_fault(tmp_path, depth):
    nested = []
    for _ in range(depth):
        nested = [nested]
    talk = Conversation(
        messages=[{"role": "user", "content": [{"type": "text", "text": "", "more": nested}]}]
    )
    async with engine_of(tmp_path, "worker") as (platform, model):
        with pytest.raises(UsageError, match=r"nested too deep|recursion limit"):
            await platform.engine.call(model, RenderRequest(conversations=[talk]))


@pytest.mark.slow
async def test_a_gradient_that_died_with_its_engine_is_missed_and_not_half_applied(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass(0))
        await killed(engine, model)
        with pytest.raises(ConflictError, match="send the whole batch again"):
            await ask(engine, model, a_pass(1))
        # Told once; then the batch is whole again.
        await ask(engine, model, a_pass(0))
        await ask(engine, model, a_pass(1))
        made = await ask(engine, model, a_step())
        assert made["step"] == 1
        node = platform.registry.tree.get(made["checkpoint_id"])
        assert node.num_datums == 4


@pytest.mark.slow
async def test_a_step_whose_gradient_died_is_refused(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        await ask(engine, model, a_pass())
        await killed(engine, model)
        with pytest.raises(ConflictError, match="send the whole batch again"):
            await ask(engine, model, a_step("one"))
        await ask(engine, model, a_pass())
        assert (await ask(engine, model, a_step("one")))["step"] == 1


@pytest.mark.slow
async def test_after_a_kill_between_steps_training_goes_on(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        made = []
        for step in range(3):
            await ask(engine, model, a_pass(step))
            made.append(await ask(engine, model, a_step(f"step:{step}")))
            await killed(engine, model)
            # Every step that was answered is answered again, and not taken again.
            for place, one in enumerate(made):
                assert await ask(engine, model, a_step(f"step:{place}")) == one
        assert [one["step"] for one in made] == [1, 2, 3]
        assert len(platform.registry.tree.nodes(model)) == 3


async def test_a_request_is_known_on_the_way_to_the_head_and_not_on_other_branches(tmp_path):
    async with engine_of(tmp_path, "inline") as (platform, model):
        engine = platform.engine
        for key in ("a", "b"):
            await ask(engine, model, a_pass())
            await ask(engine, model, a_step(key))
        await engine.call(model, MoveHead(checkpoint=None))
        await ask(engine, model, a_pass())
        await ask(engine, model, a_step("a"))
        assert len(platform.registry.tree.nodes(model)) == 3


@pytest.mark.slow
async def test_killed_at_any_moment_of_a_step_it_is_taken_once(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "RESTARTS", Backoff(0.2, longest_seconds=0.2))
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        await ask(engine, model, OpenRequest())
        steps, kills = 5, 0
        for step in range(steps):
            while True:
                try:
                    await ask(engine, model, a_pass(step))
                    call = asyncio.create_task(ask(engine, model, a_step(f"step:{step}")))
                    if kills <= step:
                        await asyncio.sleep(0.005 * step)
                        kills += 1
                        os.kill(engine.engine_of(model).pid, signal.SIGKILL)
                    made = await call
                    break
                except EngineDownError:
                    await revived(engine, model)
                    try:
                        made = await ask(engine, model, a_step(f"step:{step}"))
                        break
                    except ConflictError:
                        pass  # It had not been saved; the batch is sent again.
                    except EngineDownError:
                        await revived(engine, model)
            assert made["step"] == step + 1
        assert kills == steps
        nodes = platform.registry.tree.nodes(model)
        assert [node.step for node in nodes] == list(range(1, steps + 1))
        keys = [node.metrics["idempotency_key"] for node in nodes]
        assert keys == [f"step:{step}" for step in range(steps)]


@pytest.mark.slow
async def test_a_stop_keeps_steps_that_were_not_saved_yet(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        engine = platform.engine
        for _ in range(2):
            await ask(engine, model, a_pass())
            await ask(engine, model, a_step(save=False))
    async with engine_of(tmp_path, "inline") as (platform, model):
        assert model.head_checkpoint_id is not None
        assert platform.registry.tree.get(model.head_checkpoint_id).step == 2
        assert platform.registry.leases.holder(model.id) is None


@pytest.mark.slow
async def test_what_our_own_engine_trains_may_be_removed(tmp_path):
    async with engine_of(tmp_path, "worker") as (platform, model):
        await ask(platform.engine, model, OpenRequest())
        assert platform.registry.leases.holder(model.id).pid == platform.engine.engine_of(model).pid
        platform.registry.of(LOCAL_TEAM).remove(model.id)
        await platform.engine.call(model, ForgetModel())
        with pytest.raises(NotFoundError):
            await drawn(platform.engine, model, request())


class Server:
    """`hud up`, or as good as, in a process of its own."""

    def __init__(self, home):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(home)], stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the server did not start"

    def engine_pid(self):
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children) as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            with open(f"/proc/{pid}/cmdline") as file:
                if "engine_worker" in file.read():
                    return pid
        return None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def call(url, path, body, attempts=60):
    for _ in range(attempts):
        answer = httpx.post(url + path, json=body.model_dump(), timeout=60)
        if answer.status_code != 503:
            return answer
        assert int(answer.headers["retry-after"]) >= 1
        time.sleep(0.2)
    raise AssertionError(answer.text)


@pytest.mark.slow
def test_a_killed_server_takes_its_engine_along_and_loses_nothing_acknowledged(tmp_path):
    server = Server(tmp_path)
    body = {"name": "m", "texts": TEXTS, "sizes": SIZES}
    made = httpx.post(f"{server.url}/v2/models/create", json=body, timeout=60).json()
    train = f"/v1/models/{made['id']}/train"
    answered = []
    for step in range(4):
        call(server.url, f"{train}/forward-backward", a_pass(step)).raise_for_status()
        key = a_step(f"step:{step}")
        engine = server.engine_pid()
        if step % 2:
            # Killed before the answer, as like as not in the middle of the step.
            with contextlib.suppress(httpx.TimeoutException):
                httpx.post(f"{server.url}{train}/optim-step", json=key.model_dump(), timeout=0.02)
            server.kill()
        else:
            answered.append(call(server.url, f"{train}/optim-step", key).raise_for_status().json())
            server.kill()
        for _ in range(400):
            if not os.path.exists(f"/proc/{engine}"):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("the engine outlived its server")
        server = Server(tmp_path)
        again = call(server.url, f"{train}/optim-step", key)
        if again.status_code == 409:
            assert step % 2 == 1
            assert "send the whole batch again" in again.json()["detail"]
            call(server.url, f"{train}/forward-backward", a_pass(step)).raise_for_status()
            again = call(server.url, f"{train}/optim-step", key)
        again.raise_for_status()
        if step % 2 == 0:
            assert again.json() == answered[-1]
    nodes = httpx.get(f"{server.url}/v2/models/{made['id']}/checkpoints").json()
    assert [node["idempotency_key"] for node in nodes] == [f"step:{step}" for step in range(4)]
    assert [node["step"] for node in nodes] == [1, 2, 3, 4]
    # And it stops in order: the lease is given back.
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    server.process.stdout.close()
