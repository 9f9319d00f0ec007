"""Whose fault it was that a run through a pass failed: none of the platform's scores 0, and none of the agent's is left out."""

import asyncio
import itertools
import sqlite3
import time

import httpx
import pytest
from tests.platform.gateway.gateway_server import serving
from tests.platform.gateway.run_pass_server import faulty_platform, free_port, server_process

from hud.client import Client, disconnect
from hud.client.run_pass import RunLimits, run_pass
from hud.environment import Environment
from hud.errors import AgentFault
from hud.eval import Taskset, rollouts
from hud.processes.backoff import Backoff

env = Environment("words")


@env.template()
async def say(number: int = 0):
    answer = yield f"Say some words, for the time number {number}."
    yield 1.0 if answer == "some words" else 0.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    # A run that infrastructure broke is not repeated here.
    monkeypatch.setitem(rollouts.play_here.__kwdefaults__, "retries", 0)
    yield tmp_path
    disconnect(tmp_path / "own")


async def ask(access, text, *, path="/v1/chat/completions", timeout=60.0, **fields):
    """Ask as a program does that gives up at the first error."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}], **fields}
    headers = {"authorization": f"Bearer {access.key}"}
    async with httpx.AsyncClient(base_url=access.base_url, timeout=timeout, verify=False) as client:
        try:
            answer = await client.post(path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise AgentFault("The program exited with status 1.") from error
    if answer.status_code != 200 or "error" in answer.text:
        raise AgentFault("The program exited with status 1.")
    return answer.json()["choices"][0]["message"]["content"] if not fields.get("stream") else ""


async def give_up(access, text, **fields):
    """Ask as a program does that notes an error and goes on without an answer."""
    try:
        return await ask(access, text, **fields)
    except AgentFault:
        return ""


async def play(client, programs, concurrent=40):
    """Play a run by each program; return the runs."""

    async def agent(run):
        program, options = programs[run.task.args["number"]]
        async with run_pass(run, model="tiny", client=client, **options) as access:
            run.trace.content = await program(access)

    tasks = Taskset("words", [say(number=number) for number in range(len(programs))])
    return (await tasks.run(agent, max_concurrent=concurrent)).runs


def our_faults():
    """Programs whose calls the platform fails or refuses."""
    faults = itertools.cycle(["broken", "down", "busy", "refused"])
    places = itertools.cycle([{}, {"stream": True}])
    tries = itertools.cycle([ask, ask, give_up])
    while True:
        fault, place, attempt = next(faults), next(places), next(tries)
        for text in (fault, f"{fault} late"):
            yield lambda access, t=text, p=place, a=attempt: a(access, t, **p), {}
        unsupported = {"logit_bias": {"1": 5}}
        yield lambda access, f=unsupported, a=attempt: a(access, "hello", **f), {}


async def wrong(access):
    await ask(access, "hello")
    return "other words"


async def crashed(access):
    await ask(access, "hello")
    raise AgentFault("The program exited with status 1.")


async def silent(access):
    raise AgentFault("The program exited with status 1.")


async def impatient(access):
    return await ask(access, "hang", timeout=0.2)


async def misled(access):
    return await ask(access, "hello", path="/v1/nothing/there")


async def garbled(access):
    headers = {"authorization": f"Bearer {access.key}"}
    async with httpx.AsyncClient(base_url=access.base_url, verify=False) as client:
        await client.post("/v1/chat/completions", content=b'{"model": ', headers=headers)
    raise AgentFault("The program exited with status 1.")


async def long_winded(access):
    return await ask(access, "look at item " * 400)


async def greedy(access):
    await ask(access, "hello")
    return await ask(access, "hello again")


def own_failures():
    """Programs that fail by themselves, or at a limit of the run."""
    programs = [wrong, crashed, silent, impatient, misled, garbled]
    for program in itertools.cycle([*programs, greedy]):
        yield program, {"limits": RunLimits(calls=1)} if program is greedy else {}


@pytest.mark.parametrize("count", [28, pytest.param(200, marks=pytest.mark.slow)])
async def test_faults_of_the_platform_are_infrastructure_and_the_agents_own_score_0(home, count):
    app, key = faulty_platform(home / "server")
    with serving(app) as url:
        client = Client(api_url=url, api_key=key)
        ours = await play(client, list(itertools.islice(our_faults(), count)))
        own = await play(client, list(itertools.islice(own_failures(), count)))
    app.state.parts.close()
    assert [(run.failure_kind, run.reward) for run in ours] == [("infrastructure", None)] * count
    assert [run.reward for run in own] == [0.0] * count
    assert {run.failure_kind for run in own} == {"agent", None}


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False])
async def test_a_server_that_is_killed_is_infrastructure(home, restarted, monkeypatch):
    monkeypatch.setattr("hud.client.client.PAUSES", Backoff(0.5))
    port, database = free_port(), None
    with server_process(home / "server", port, database) as (process, key):
        client = Client(api_url=f"http://127.0.0.1:{port}", api_key=key)
        programs = [(lambda access: ask(access, "hang"), {})] * 20
        runs = asyncio.create_task(play(client, programs))
        await asyncio.to_thread(wait_for_calls, home / "server", 20)
        process.kill()
        process.wait()
        if restarted:
            with server_process(home / "server", port, database):
                done = await runs
        else:
            done = await runs
    assert {(run.failure_kind, run.reward) for run in done} == {("infrastructure", None)}


def wait_for_calls(home, count):
    """Wait until a server has recorded that many calls."""
    with sqlite3.connect(home / "hud.db") as connection:
        for _ in range(600):
            (recorded,) = connection.execute("SELECT count(*) FROM run_calls").fetchone()
            if recorded >= count:
                return
            time.sleep(0.1)
    raise AssertionError(f"{recorded} calls, not {count}")
