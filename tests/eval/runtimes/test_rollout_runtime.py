"""The port of runtimes: any form is one, and nothing about an implementation is asked by its attributes."""

import ast
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hud.environment import Environment
from hud.errors import UsageError
from hud.eval import HostedRuntime, LocalRuntime, Shared, Taskset
from hud.eval.runtimes.rollout_runtime import RolloutRuntime, as_runtime

SOURCE = Path(__file__).parents[3] / "packages" / "openhud" / "hud"
PORTS = {"aclose", "play", "prepare", "check_agent", "closes_at_once", "opens_at_once"}
"""Operations of the ports that no code may look up by name."""


@pytest.fixture
def greeting():
    env = Environment("greeting")

    @env.template()
    async def greet(name: str = "Ada"):
        answer = yield f"Greet {name}."
        yield float(name in answer)

    return greet()


def agent(run):
    return "Hello Ada"


async def test_a_function_of_the_task_is_a_runtime(greeting):
    opened = []

    @asynccontextmanager
    async def noting(task):
        opened.append(task.slug)
        async with LocalRuntime()(task) as connection:
            yield connection

    job = await Taskset("greetings", [greeting]).run(agent, runtime=noting)
    assert (job.reward, opened) == (1.0, [greeting.slug])
    await as_runtime(noting).aclose()


async def test_no_runtime_means_this_process(greeting):
    async with as_runtime(None)(greeting) as connection:
        assert (await connection.start(greeting.id, greeting.args)).prompt == "Greet Ada."


async def test_a_runtime_around_another_closes_it():
    class Closing(RolloutRuntime):
        closed = 0

        async def aclose(self):
            self.closed += 1

    inner = Closing()
    await Shared(inner, width=2).aclose()
    assert inner.closed == 1


async def test_a_runtime_that_plays_elsewhere_opens_nothing(greeting):
    with pytest.raises(UsageError, match="HostedRuntime plays whole rollouts elsewhere"):
        HostedRuntime()(greeting)


@pytest.mark.slow
def test_no_operation_of_a_port_is_looked_up_by_name():
    looked_up = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", None) in ("getattr", "hasattr")
        and len(node.args) > 1
        and getattr(node.args[1], "value", None) in PORTS
    ]
    assert looked_up == []
