"""A run's own call that ends its environment is its agent's failure, in every runtime with a process for each run.

A wrong answer would else become a failure without a reward, or one that is repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hud.environment import Task
from hud.eval import ForkRuntime, SubprocessRuntime, rollout
from hud.eval.runtimes import process_loss
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder

SOURCE = """
import asyncio, ctypes, os, signal, socket, subprocess, sys, threading, time
from hud.environment import Environment

env = Environment("fragile")

def write_garbage():
    for descriptor in range(3, 100):
        try:
            socket.socket(fileno=os.dup(descriptor)).send(b"x" * 1000 + b"\\n")
        except OSError:
            pass

ENDS = {
    "exit": lambda: os._exit(3),
    "exit in success": lambda: os._exit(0),
    "segmentation fault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGKILL of the group": lambda: os.killpg(0, signal.SIGKILL),
    "SIGKILL of the parent": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "another program": lambda: os.execv("/bin/true", ["true"]),
    "closed descriptors": lambda: os.closerange(3, 1000),
    "garbage on the stream": lambda: write_garbage(),
    "a thread": lambda: threading.Thread(target=os._exit, args=(3,)).start(),
    "another process": lambda: subprocess.run(["/bin/kill", "-9", str(os.getpid())]),
    "the interpreter's exit": lambda: ctypes.pythonapi.Py_Exit(4),
}

@env.tool
async def end(how: str) -> str:
    ENDS[how]()
    await asyncio.sleep(20)

@env.tool
def end_later(signal: str) -> int:
    subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -{signal} {os.getpid()}"], start_new_session=True)
    return os.getpid()

@env.tool
def stop_both_later() -> str:
    parent, own = os.getppid(), os.getpid()
    command = f"sleep 0.3; kill -STOP {parent}; sleep 0.2; kill -STOP {own}"
    subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)

@env.tool
def lower(limit: str) -> str:
    code = (
        "import resource, sys, time; time.sleep(0.3); number = getattr(resource, sys.argv[2]); "
        "resource.prlimit(int(sys.argv[1]), number, (1, resource.getrlimit(number)[1]))"
    )
    subprocess.Popen([sys.executable, "-c", code, str(os.getpid()), limit], start_new_session=True)

@env.tool
async def copy() -> str:
    for _ in range(3):
        os.fork()
    return str(os.getpid())

@env.tool
async def spin() -> str:
    while True:
        pass

@env.tool
async def pid() -> int:
    return os.getpid()

@env.template(id="one")
async def one(end: str = ""):
    if end == "in setup":
        os._exit(3)
    answer = yield "Say hello"
    if end == "in grading":
        os._exit(3)
    if end.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, end))
    if end == "needs files":
        with open(os.devnull, "wb") as file:
            file.write(bytes(1 << 20))
        subprocess.run(["/bin/true"], check=True)
    yield 1.0 if answer == "hello" else 0.0
"""
ENDS = [
    "exit",
    "exit in success",
    "segmentation fault",
    "abort",
    "SIGKILL",
    "SIGSTOP",
    "SIGTERM",
    "SIGKILL of the group",
    "SIGKILL of the parent",
    "another program",
    "closed descriptors",
    "garbage on the stream",
    "a thread",
    "another process",
    "the interpreter's exit",
]
TASK = Task(env="fragile", id="one", args={})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


async def play(runtime, agent, task=TASK, **options):
    try:
        return await rollout(task, agent, runtime=runtime, recorder=NullRecorder(), **options)
    finally:
        await runtime.aclose()


RUNTIMES = {"fork": ForkRuntime, "subprocess": SubprocessRuntime}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_call_that_ends_the_environment_is_reward_0_once(source, runtime, how):
    attempts = []

    async def agent(run):
        attempts.append(run)
        await run.call_tool(ToolCall(id="1", name="end", arguments={"how": how}))

    run = await play(RUNTIMES[runtime](source), agent)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    assert len(attempts) == 1, "it is not repeated"


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["KILL", "STOP", "XCPU", "INT", "SEGV", "ABRT", "BUS"])
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_what_a_call_left_running_counts_as_the_call(source, runtime, sent):
    """A process that is stopped ends: it would hold up the grade until the time limit."""

    async def agent(run):
        call = ToolCall(id="1", name="end_later", arguments={"signal": sent})
        pid = int((await run.call_tool(call)).text)
        async with asyncio.timeout(25.0):
            while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)

    run = await play(RUNTIMES[runtime](source), agent, rollout_timeout=30.0)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_run_that_stops_what_watches_it_too_ends(source, runtime):
    """The time limit ended it while it was graded, which would be a failure of the grader."""

    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="stop_both_later", arguments={}))
        await asyncio.sleep(1.0)
        return "wrong"

    run = await play(RUNTIMES[runtime](source), agent, rollout_timeout=25.0)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_copy_of_the_environment_takes_no_message_of_the_run(source, runtime):
    """It would hold up the grade until the time limit, which would be a failure of the grader."""

    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="copy", arguments={}))
        await asyncio.sleep(0.3)
        return "wrong"

    run = await play(RUNTIMES[runtime](source), agent, rollout_timeout=15.0)
    assert (run.failure_kind, run.reward) == (None, 0.0), run.error


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["cpu_seconds", "wall_seconds"])
async def test_a_call_that_passes_a_limit_of_the_runtime_is_reward_0(source, limit):
    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="spin", arguments={}))

    run = await play(ForkRuntime(source, **{limit: 1.0}), agent)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    assert f"passed its limit {limit}=1" in run.error


@pytest.mark.parametrize("calls", [0, 1])
async def test_an_agent_that_waits_past_a_limit_of_the_runtime_has_reward_0(source, calls):
    """It would void a run that it is losing by doing nothing."""

    async def agent(run):
        for _ in range(calls):
            await run.call_tool(ToolCall(id="1", name="pid", arguments={}))
        await asyncio.sleep(1.5)
        return "wrong"

    run = await play(ForkRuntime(source, wall_seconds=1.0), agent)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    assert "passed its limit wall_seconds=1" in run.error


@pytest.mark.parametrize("end", ["in setup", "in grading"])
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_an_end_by_the_environments_own_code_has_no_reward(source, runtime, end):
    async def agent(run):
        del run

    task = Task(env="fragile", id="one", args={"end": end})
    run = await play(RUNTIMES[runtime](source), agent, task)
    assert (run.failure_kind, run.reward) == ("environment", None), run.error


@pytest.mark.parametrize(
    "sent",
    [
        "SIGSEGV",
        "SIGKILL",
        *(pytest.param(sent, marks=pytest.mark.slow) for sent in ("SIGABRT", "SIGBUS", "SIGFPE")),
    ],
)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_signal_in_grading_is_the_failure_of_an_agent_that_used_a_tool(
    source, runtime, sent
):
    """A process that it left can send any signal in the moment in which grading begins, and void a wrong answer."""

    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="pid", arguments={}))
        return "wrong"

    async def idle(run):
        return "wrong"

    task = Task(env="fragile", id="one", args={"end": sent})
    run = await play(RUNTIMES[runtime](source), agent, task)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    run = await play(RUNTIMES[runtime](source), idle, task)
    assert (run.failure_kind, run.reward) == ("environment", None), run.error


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "kind"), [(3.5, "agent"), (0.0, "infrastructure")])
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_an_earlier_lack_of_memory_explains_no_kill(source, monkeypatch, runtime, wait, kind):
    """An agent can fill its workspace's memory at first, and kill its environment instead of being graded."""
    kills = [7]
    monkeypatch.setattr(process_loss, "oom_kills", lambda: kills[0])

    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="pid", arguments={}))
        kills[0] += 1
        await asyncio.sleep(wait)
        await run.call_tool(ToolCall(id="2", name="end", arguments={"how": "SIGKILL"}))

    run = await play(RUNTIMES[runtime](source), agent)
    assert run.failure_kind == kind, run.error


@pytest.mark.parametrize(
    "limit",
    [
        "RLIMIT_FSIZE",
        "RLIMIT_AS",
        *(
            pytest.param(limit, marks=pytest.mark.slow)
            for limit in ("RLIMIT_NOFILE", "RLIMIT_NPROC")
        ),
    ],
)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_limit_that_a_process_of_a_tool_lowers_fails_no_grader(source, runtime, limit):
    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="lower", arguments={"limit": limit}))
        await asyncio.sleep(1.5)
        return "wrong"

    run = await play(
        RUNTIMES[runtime](source), agent, Task(env="fragile", id="one", args={"end": "needs files"})
    )
    assert (run.failure_kind, run.reward) in [(None, 0.0), ("agent", 0.0)], run.error


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_an_end_without_any_call_has_no_reward(source, runtime):
    async def agent(run):
        if runtime == "subprocess":
            os.kill(int(run.runtime.partition(":")[2]), signal.SIGKILL)
        else:
            (child,) = run.live.world.gen.ag_frame.f_locals["server"].children.values()
            os.kill(child.pid, signal.SIGKILL)
        await asyncio.sleep(1.0)

    run = await play(RUNTIMES[runtime](source), agent)
    assert (run.failure_kind, run.reward) == ("environment", None), run.error
