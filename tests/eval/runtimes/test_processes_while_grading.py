"""What a plain tool left running, while its run is graded and afterwards: what docs/security.md promises, and what not."""

import asyncio
import contextlib
import os
import signal
import textwrap

import psutil
import pytest

from hud.environment import Task
from hud.eval import ForkRuntime, LocalRuntime, SubprocessRuntime

SOURCE = textwrap.dedent(
    """
    import os
    import subprocess
    import sys

    from hud.environment import Environment

    env = Environment("leaving")
    left = []

    @env.tool
    async def leave() -> int:
        left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return left[-1].pid

    @env.template()
    async def graded():
        yield "Leave something running."
        yield float(left[-1].poll() is None)
    """
)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("kind", [LocalRuntime, ForkRuntime, SubprocessRuntime])
async def test_what_a_plain_tool_left_running_goes_on_while_it_is_graded(source, kind):
    runtime = kind(source)
    task = Task(env="leaving", id="graded")
    async with runtime(task) as connection:
        await connection.start("graded", {})
        pid = int((await connection.call_tool("leave", {})).result.text)
        grade = await connection.grade("done", None)
        assert grade["score"] == 1.0, "It is documented as running while it is graded."
    try:
        if kind is LocalRuntime:
            assert psutil.Process(pid).is_running()
        else:
            assert await ended(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        close = getattr(runtime, "aclose", None)
        if close is not None:
            await close()


async def ended(pid, seconds=30.0):
    async with asyncio.timeout(seconds):
        while psutil.pid_exists(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    break
            await asyncio.sleep(0.05)
    return True
