"""Tasks of environments in several files, each played where its own file is loaded."""

from __future__ import annotations

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.environment import load_environment
from hud.errors import UsageError
from hud.eval import ForkRuntime, LocalRuntime, NullRecorder, PerSource, Taskset

FILE = """
from hud import Environment

env = Environment("{0}")

@env.template(id="say_{0}")
async def say():
    answer = yield "Say it."
    yield float(answer == "{0}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalRuntime, ForkRuntime])
async def test_each_environment_is_loaded_from_its_own_file(tmp_path, kind):
    tasks = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.py"
        path.write_text(FILE.format(name))
        environment = load_environment(path)
        tasks.append(environment.templates[f"say_{name}"]())
    made = []

    def make(source):
        made.append(source)
        return kind(source)

    runtime = PerSource(make)
    job = await Taskset("both", tasks).run(
        ScriptedAgent(lambda run: run.task.id.removeprefix("say_")),
        runtime=runtime,
        group=2,
        recorder=NullRecorder(),
    )
    await runtime.aclose()
    assert [run.reward for run in job.runs] == [1.0] * 4
    assert sorted(made) == [str(tmp_path / "one.py"), str(tmp_path / "two.py")]


async def test_an_environment_that_was_made_in_no_file_is_refused():
    env = Environment("nowhere")
    env.source_file = None

    @env.template()
    async def say():
        yield "Say it."
        yield 1.0

    with pytest.raises(UsageError, match="was made in no file"):
        PerSource(ForkRuntime)(say())
