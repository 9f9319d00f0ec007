"""OpenEnv's servers and clients, as released, over the wire: `scripts/setup-integration openenv`."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("openenv", reason="scripts/setup-integration openenv")

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as OpenEnvInterface
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from tests.integrations import letters

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.errors import UsageError
from hud.trace import ToolCall
from hud_integrations.openenv import OpenEnvEnvironment, server_app


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))


@contextlib.contextmanager
def serving(app):
    """Serve an application on a free port of the loopback; yields its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class GuessAction(Action):
    """Guess the number."""

    number: int


class GuessObservation(Observation):
    hint: str


class Guessing(OpenEnvInterface):
    """Pays for a guess by its distance, and ends at the right one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.secret = 0

    def reset(self, seed=None, episode_id=None, most=10, **_):
        self.secret = (seed or 0) % most
        return GuessObservation(hint=f"Guess a number below {most}.")

    def step(self, action, timeout_s=None, **_):
        if action.number == self.secret:
            return GuessObservation(hint="right", done=True, reward=1.0)
        return GuessObservation(
            hint="lower" if action.number > self.secret else "higher", reward=-0.1
        )

    @property
    def state(self):
        return State()


class Shop(MCPEnvironment):
    """Pays for adding up."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("shop")

        @server.tool()
        def add(a: int, b: int) -> int:
            """Add two prices."""
            return a + b

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **_):
        return Observation(metadata={"said": "Add 2 and 3."})

    def _step_impl(self, action, timeout_s=None, **_):
        raise ValueError("only tools")

    @property
    def state(self):
        return State()


async def played(task, calls):
    """Return the run of a script, and the texts of its tool results."""
    texts = []

    async def play(run):
        texts.append(run.prompt_text)
        texts.append([tool.name for tool in run.tools])
        for place, (name, arguments) in enumerate(calls):
            texts.append(
                await run.call_tool(ToolCall(id=str(place), name=name, arguments=arguments))
            )
        return "done"

    return (await task.run(ScriptedAgent(play))).runs[0], texts


async def test_a_server_of_openenv_is_an_environment():
    app = create_fastapi_app(Guessing, GuessAction, GuessObservation, max_concurrent_envs=50)
    with serving(app) as url:
        env = OpenEnvEnvironment(
            url, name="guess", instructions="Play.", returns=(-1.0, 1.0), reward="sum"
        )
        steps = [("step", {"number": number}) for number in (7, "x", 3)]
        run, texts = await played(env.episode(seed=13, most=10), steps)
        assert texts[0] == "Play.\n\nGuess a number below 10."
        assert texts[1] == ["step"]
        assert texts[2].text == "lower\nReward: -0.1"
        assert texts[3].is_error, "another action is a tool error, and no step"
        assert texts[3].text.startswith("Invalid message:\nnumber: Input should be a valid integer")
        assert texts[4].text == "right\nReward: 1\nThe episode is over."
        assert run.grade.info == {"rewards": [-0.1, 1.0], "steps": 2, "done": True}
        assert run.reward == pytest.approx((0.9 + 1) / 2)
        run, _ = await played(env.episode(seed=3), [])
        assert run.reward == 0.0, "without a step nothing is earned"
        (spec,) = await tools_of(env)
        assert spec.parameters["properties"]["number"]["type"] == "integer"
        assert "metadata" not in spec.parameters["properties"]
        tasks = [env.episode(seed=seed) for seed in range(20)]

        async def guess(run):
            call = ToolCall(id="1", name="step", arguments={"number": run.task.args["seed"] % 10})
            await run.call_tool(call)

        job = await Taskset("guess", tasks).run(ScriptedAgent(guess), max_concurrent=20)
        assert [run.reward for run in job.runs] == [1.0] * 20, "sessions of their own"


@pytest.mark.parametrize(
    ("action", "lines"),
    [
        ({}, ["number: Field required"]),
        ({"number": None}, ["number: Input should be a valid integer"]),
        ({"number": 1, "colour": "red"}, ["colour: Extra inputs are not permitted"]),
        ({"numbr": 1}, ["number: Field required", "numbr: Extra inputs are not permitted"]),
    ],
)
async def test_a_wrong_action_is_told_its_fields(action, lines):
    app = create_fastapi_app(Guessing, GuessAction, GuessObservation, max_concurrent_envs=5)
    with serving(app) as url:
        run, texts = await played(OpenEnvEnvironment(url).episode(seed=3), [("step", action)])
        assert texts[2].is_error
        assert texts[2].text.splitlines() == ["Invalid message:", *lines]
        assert run.failure_kind is None


async def tools_of(env):
    async with env.run() as run:
        await run.start("episode", {"seed": 1})
        return await run.list_tools()


async def test_tools_over_mcp_are_tools():
    with serving(
        create_fastapi_app(Shop, CallToolAction, CallToolObservation, max_concurrent_envs=5)
    ) as url:
        env = OpenEnvEnvironment(url)
        run, texts = await played(env.episode(), [("add", {"a": 2, "b": 3}), ("add", {"a": 2})])
        assert run.failure_kind is None, run.error
        assert texts[1] == ["add"]
        assert texts[2].text.startswith("5")
        assert texts[3].is_error


async def test_a_lost_server_is_no_failure_of_the_agent():
    with serving(create_fastapi_app(Guessing, GuessAction, GuessObservation)) as url:
        env = OpenEnvEnvironment(url)
    run, _ = await played(env.episode(), [])
    assert (run.reward, run.failure_kind) == (None, "infrastructure")
    assert f"No OpenEnv server answers at {url}" in run.error
    for wrong in ({"url": "localhost:1"}, {"url": url, "returns": (1.0, 0.0)}):
        with pytest.raises(UsageError):
            OpenEnvEnvironment(**wrong)


def client_plays(url):
    """Play with OpenEnv's own client; returns what it saw."""
    seen = []
    with GenericEnvClient(base_url=url).sync() as client:
        seen.append(client.reset(task_id=letters.tasks[1].slug))
        seen.append(client.step({"tool_name": "spell", "arguments": {"word": "sun"}}))
        seen.append(client.step({"tool_name": "nothing"}))
        seen.append(client.step({"answer": "sun"}))
        seen.append(client.reset(seed=4))
        seen.append(client.step({"answer": "x"}))
        seen.append(client.state())
    return seen


async def test_tasks_of_ours_are_served_to_its_clients():
    with serving(server_app(Taskset("letters", letters.tasks))) as url:
        started, called, unknown, graded, again, last, state = await asyncio.to_thread(
            client_plays, url
        )
    assert started.observation["prompt"] == "Write sun with different letters."
    assert started.observation["tools"][0]["name"] == "spell"
    assert (called.observation["result"], called.observation["is_error"]) == ("s u n", False)
    assert unknown.observation["is_error"]
    assert (graded.reward, graded.done) == (1.0, True)
    assert "red" in again.observation["prompt"], "a seed counts the tasks out"
    assert (last.reward, last.done) == (1.0, True)
    assert state["task_id"] == letters.tasks[0].slug
    (job,) = (await connect().get("/v2/jobs"))["items"]
    assert job["name"] == "letters (openenv)"
    listed = (await connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]
    assert [run["reward"] for run in listed] == [1.0, 1.0]


async def test_sessions_that_begin_at_once_share_a_job_and_each_get_a_task_of_their_own():
    together = threading.Barrier(len(letters.tasks))

    def play(url):
        with GenericEnvClient(base_url=url).sync() as client:
            client.state()
            together.wait()
            return client.reset().observation["prompt"]

    with serving(server_app(letters.tasks, name="letters")) as url:
        prompts = await asyncio.gather(*(asyncio.to_thread(play, url) for _ in letters.tasks))
    assert len(set(prompts)) == len(letters.tasks)
    (job,) = (await connect().get("/v2/jobs"))["items"]
    assert len((await connect().get(f"/v2/jobs/{job['id']}/traces"))["items"]) == len(prompts)


async def test_an_unmeasured_run_has_no_reward():
    def play(url):
        with GenericEnvClient(base_url=url).sync() as client:
            client.reset()
            return client.step({"answer": "x"})

    with serving(server_app([letters.broken(word="red")])) as url:
        graded = await asyncio.to_thread(play, url)
    assert (graded.reward, graded.done) == (None, True)
    assert graded.observation["metadata"]["failure_kind"] == "grader"


async def test_our_own_environment_plays_our_own_server():
    with serving(server_app(letters.tasks, name="letters")) as url:
        env = OpenEnvEnvironment(url)
        task = env.episode(task_id=letters.tasks[2].slug)
        run, texts = await played(task, [("step", {"answer": "pot"})])
        assert "Write pot" in texts[0]
        assert run.reward == 1.0
