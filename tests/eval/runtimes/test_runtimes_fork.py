"""`ForkRuntime`: one rollout, one process; whatever happens in it happens to that rollout alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from hud.environment import Environment, Task, load_environment
from hud.errors import AgentFault, EnvironmentFault, GraderFault, InfrastructureFault, UsageError
from hud.eval import ForkRuntime, rollouts
from hud.eval.rollouts import rollout
from hud.processes.backoff import Backoff
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder

SOURCE = """
import asyncio, ctypes, os, random, signal, subprocess, sys, time
from hud.environment import Environment

env = Environment("rough", version="2.0", reward_range=(-1.0, 1.0))
seen = []

@env.tool
async def note(word: str) -> str:
    seen.append(word)
    return ",".join(seen)

@env.tool
def draw() -> str:
    return str(random.random())

@env.tool
def whoami() -> dict:
    return {"pid": os.getpid(), "group": os.getpgid(0), "stdin": sys.stdin.read(), "parent": os.getppid()}

@env.tool
async def open_files() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]

@env.tool
async def hang() -> str:
    while True:
        time.sleep(1)

@env.tool
async def leave(status: int) -> str:
    print("leaving early", file=sys.stderr)
    os._exit(status)

@env.tool
async def segfault() -> str:
    ctypes.string_at(0)

@env.tool
async def spin() -> str:
    while True:
        pass

@env.tool
def eat(megabytes: int) -> str:
    return str(len(bytearray(megabytes << 20)))

@env.tool
async def spawn(detached: bool) -> int:
    return subprocess.Popen(["sleep", "300"], start_new_session=detached).pid

@env.tool
async def orphan() -> int:
    script = "sleep 300 >/dev/null 2>&1 & echo $!"
    return int(subprocess.run(["setsid", "sh", "-c", script], capture_output=True, text=True).stdout)

@env.tool
async def shout(megabytes: int) -> str:
    for _ in range(megabytes):
        print("x" * (1 << 20))
    print("last words", flush=True)
    return "done"

@env.tool
def large(megabytes: int) -> str:
    return "x" * (megabytes << 20)

@env.template(id="one")
async def one(word: str = ""):
    answer = yield f"Say {word}"
    if answer == "exit":
        sys.exit(7)
    yield 1.0 if answer == word else 0.0

@env.shutdown
async def finish():
    if "slow goodbye" in seen:
        await asyncio.sleep(0.3)
    if "bad goodbye" in seen:
        raise RuntimeError("the lights stayed on")
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rough") / "env.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
async def forks(source):
    """A maker of runtimes that are closed at the end, and have then left no process behind."""
    before = set(psutil.Process().children(recursive=True))
    made = []

    def make(**options):
        made.append(ForkRuntime(options.pop("at", source), **options))
        return made[-1]

    yield make
    for runtime in made:
        await runtime.aclose()
    assert set(psutil.Process().children(recursive=True)) <= before


TASK = Task(env="rough", id="one", args={"word": "hello"})


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def gone(*pids: int, within: float = 3.0) -> bool:
    """Wait until none of the processes lives."""
    end = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


@pytest.mark.slow
async def test_a_rollout_in_a_process_of_its_own(forks):
    async with forks()(TASK) as connection:
        assert (connection.name, connection.version) == ("rough", "2.0")
        assert connection.reward_range == (-1.0, 1.0)
        assert "whoami" in {tool.name for tool in await connection.list_tools()}
        assert (await connection.start("one", {"word": "hello"})).prompt == "Say hello"
        who = (await connection.call_tool("whoami", {})).result.structured_content
        assert who["pid"] not in (os.getpid(), who["parent"])
        assert who["group"] == who["pid"]
        assert who["stdin"] == ""
        assert (await connection.grade("hello", None))["score"] == 1.0
    assert await gone(who["pid"])


@pytest.mark.slow
async def test_two_runs_share_neither_globals_nor_randomness(forks):
    runtime = forks()
    async with runtime(TASK) as first, runtime(TASK) as second:
        assert (await first.call_tool("note", {"word": "a"})).result.text == "a"
        assert (await second.call_tool("note", {"word": "b"})).result.text == "b"
        draws = [(await one.call_tool("draw", {})).result.text for one in (first, second)]
        assert draws[0] != draws[1]
    async with runtime(TASK) as third:
        assert (await third.call_tool("note", {"word": "c"})).result.text == "c"


@pytest.mark.slow
async def test_a_child_holds_no_descriptor_of_the_others(forks):
    runtime = forks()
    async with runtime(TASK) as first, runtime(TASK) as second:
        files = []
        for connection in (first, second):
            result = (await connection.call_tool("open_files", {})).result
            files.append(result.text)
        assert files[0].count("socket:") == files[1].count("socket:")
        assert files[0].count("pipe:") == files[1].count("pipe:")


@pytest.mark.slow
async def test_a_tool_that_never_returns_ends_with_its_own_run(forks):
    runtime = forks(wall_seconds=0.5)
    async with runtime(TASK) as other:
        started = time.monotonic()
        with pytest.raises(AgentFault, match=r"passed its limit wall_seconds=0\.5"):
            async with runtime(TASK) as connection:
                await connection.call_tool("hang", {})
        assert time.monotonic() - started < 2.0
        del other
    async with runtime(TASK) as connection:
        assert (await connection.call_tool("note", {"word": "a"})).result.text == "a"


@pytest.mark.slow
async def test_a_hung_child_without_limits_is_killed_when_the_rollout_is_over(forks):
    runtime = forks()
    started = time.monotonic()
    async with runtime(TASK) as connection:
        pid = (await connection.call_tool("whoami", {})).result.structured_content["pid"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connection.call_tool("hang", {})
    assert await gone(pid)
    assert time.monotonic() - started < 6.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("leave", {"status": 3}, "exited with 3; it last said: leaving early"),
        ("segfault", {}, "killed by SIGSEGV"),
    ],
)
async def test_a_crash_tells_how_and_the_last_words(forks, tool, arguments, words):
    runtime = forks()
    async with runtime(TASK) as bystander:
        with pytest.raises(AgentFault, match=words):
            async with runtime(TASK) as connection:
                await connection.call_tool(tool, arguments)
        assert (await bystander.call_tool("note", {"word": "a"})).result.text == "a"


async def test_a_template_that_exits_the_interpreter_is_a_failed_run_not_a_failed_job(forks):
    with pytest.raises(GraderFault, match="raised SystemExit: 7"):
        async with forks()(TASK) as connection:
            await connection.start("one", {})
            await connection.grade("exit", None)


async def test_a_child_that_is_killed_is_told_as_such(forks):
    """Once its agent has called a tool, what the tool left may have killed it: another attempt is no way out."""
    async with forks()(TASK) as connection:
        pid = (await connection.call_tool("whoami", {})).result.structured_content["pid"]
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(AgentFault, match="killed by SIGTERM"):
            await connection.start("one", {})


@pytest.mark.slow
async def test_a_memory_bomb_meets_its_limit_and_modest_use_does_not(forks):
    async with forks(memory_mb=200)(TASK) as connection:
        assert (await connection.call_tool("eat", {"megabytes": 50})).result.text == str(50 << 20)
        bomb = (await connection.call_tool("eat", {"megabytes": 400})).result
        assert bomb.is_error
        assert "MemoryError" in bomb.text
        assert (await connection.call_tool("note", {"word": "a"})).result.text == "a"


@pytest.mark.slow
async def test_spinning_meets_the_processor_limit(forks):
    with pytest.raises(AgentFault, match="passed its limit cpu_seconds=1"):
        async with forks(cpu_seconds=1)(TASK) as connection:
            await connection.call_tool("spin", {})


@pytest.mark.parametrize("tool", ["spawn", "detached", "orphan"])
async def test_what_a_rollout_started_ends_with_it(forks, tool):
    runtime = forks()
    async with runtime(TASK) as connection:
        if tool == "orphan":
            outcome = await connection.call_tool("orphan", {})
        else:
            outcome = await connection.call_tool("spawn", {"detached": tool == "detached"})
        pid = int(outcome.result.text)
        assert alive(pid)
    assert await gone(pid)


async def test_output_is_kept_from_ours_and_never_fills_anything(forks, capfd):
    async with forks()(TASK) as connection:
        assert (await connection.call_tool("shout", {"megabytes": 8})).result.text == "done"
        with pytest.raises(AgentFault, match="exited with 3; it last said: x+\nlast words"):
            await connection.call_tool("leave", {"status": 3})
    assert capfd.readouterr().out == ""


async def test_fifty_megabytes_of_tool_result_are_cut_not_fatal(forks):
    async with forks()(TASK) as connection:
        result = (await connection.call_tool("large", {"megabytes": 50})).result
        assert len(result.text) < 1 << 20
        assert (await connection.call_tool("note", {"word": "a"})).result.text == "a"


async def test_shutdown_hooks_get_their_time_and_are_heard(forks):
    runtime = forks()
    async with runtime(TASK) as connection:
        await connection.call_tool("note", {"word": "slow goodbye"})
    with pytest.raises(EnvironmentFault, match="the lights stayed on"):
        async with runtime(TASK) as connection:
            await connection.call_tool("note", {"word": "bad goodbye"})


@pytest.mark.slow
async def test_runs_are_recorded_with_the_kind_of_their_failure(forks, monkeypatch):
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))
    runtime = forks(wall_seconds=1.0)

    def agent(tool, **arguments):
        async def play(run):
            run.trace.content = "hello"
            if tool:
                await run.call_tool(ToolCall(id="1", name=tool, arguments=arguments))

        return play

    async def play(player):
        return await rollout(TASK, player, runtime=runtime, recorder=NullRecorder())

    fine, crashed, hung, fine_again = await asyncio.gather(
        play(agent(None)), play(agent("leave", status=1)), play(agent("hang")), play(agent("draw"))
    )
    assert [run.reward for run in (fine, fine_again)] == [1.0, 1.0]
    assert [run.failure_kind for run in (crashed, hung)] == ["agent", "agent"]
    assert "exited with 1" in crashed.error
    assert "wall_seconds=1" in hung.error


@pytest.mark.slow
async def test_a_killed_warm_server_takes_its_runs_and_is_replaced(forks):
    runtime = forks()
    async with runtime(TASK) as connection, runtime(TASK) as other:
        who = (await connection.call_tool("whoami", {})).result.structured_content
        spawned = int((await connection.call_tool("spawn", {"detached": False})).result.text)
        await other.call_tool("whoami", {})
        os.kill(who["parent"], signal.SIGKILL)
        assert await gone(who["parent"])
        # A call that is at work when the loss is seen would be the agent's failure.
        async with asyncio.timeout(20):
            while not connection.is_lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        with pytest.raises(InfrastructureFault, match="the warm server died"):
            await connection.call_tool("hang", {})
    assert await gone(who["pid"], who["parent"], spawned)
    async with runtime(TASK) as connection:
        assert (await connection.start("one", {"word": "x"})).prompt == "Say x"


KILLS = """
@env.tool
def kill_server() -> None:
    os.kill(os.getppid(), 9)
    time.sleep(60)

@env.tool
def terminate_server() -> None:
    os.kill(os.getppid(), 15)
    time.sleep(60)

@env.tool
def crash_server() -> None:
    os.kill(os.getppid(), 11)
    time.sleep(60)

@env.tool
def kill_itself() -> None:
    os.kill(os.getpid(), 9)

@env.tool
def terminate_itself() -> None:
    subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill {os.getpid()}"], start_new_session=True)

@env.tool
def interrupt_itself() -> None:
    subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -INT {os.getpid()}"], start_new_session=True)

@env.tool
def stop_server() -> None:
    os.kill(os.getppid(), 19)

@env.tool
async def kill_from_outside() -> None:
    subprocess.Popen(["/bin/kill", "-9", str(os.getppid())])
    await asyncio.sleep(60)

@env.tool
async def kill_later() -> None:
    command = f"sleep 0.3; kill -9 {os.getppid()}"
    subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
"""


KILLERS = {
    "kill_server": "was killed by SIGKILL",
    "terminate_server": "was killed by SIGTERM",
    "crash_server": "was killed by SIGSEGV",
    "kill_from_outside": "was killed by SIGKILL",
    "kill_later": "was killed by SIGKILL",
    "kill_itself": "was killed by SIGKILL",
    "terminate_itself": "was killed by SIGTERM",
    "interrupt_itself": "was killed by SIGINT",
}


@pytest.mark.slow
@pytest.mark.parametrize("tool", KILLERS)
async def test_an_agent_that_kills_the_warm_server_or_its_own_process_has_failed(
    forks, tmp_path, monkeypatch, tool
):
    """Its own wrong answer would else be an infrastructure failure, which is retried and enters no mean."""
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))
    path = tmp_path / "killed.py"
    path.write_text(f"import asyncio, subprocess\n{SOURCE}{KILLS}")
    runtime, attempts, begun = forks(at=path), [], asyncio.Event()

    async def kill(run):
        attempts.append(run.task.slug)
        begun.set()
        await run.call_tool(ToolCall(id="1", name=tool, arguments={}))
        await asyncio.sleep(1.0)

    async def wait(run):
        await begun.wait()
        await asyncio.sleep(0.2)
        run.trace.content = "hello"

    async def play(player):
        return await rollout(TASK, player, runtime=runtime, recorder=NullRecorder())

    killed, honest = await asyncio.gather(play(kill), play(wait))
    assert (killed.reward, killed.failure_kind) == (0.0, "agent"), killed.error
    assert KILLERS[tool] in killed.error
    assert len(attempts) == 1, "it is not repeated"
    assert honest.reward == 1.0, honest.error


async def test_a_warm_server_that_a_tool_stopped_goes_on(forks, tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text(f"import asyncio, subprocess\n{SOURCE}{KILLS}")
    runtime = forks(at=path)
    async with asyncio.timeout(30):
        for _ in range(2):
            async with runtime(TASK) as connection:
                await connection.call_tool("stop_server", {})
                assert (await connection.call_tool("note", {"word": "a"})).result.text == "a"
        await runtime.aclose()


@pytest.mark.slow
async def test_of_several_runs_at_work_those_that_kill_again_have_failed(
    forks, tmp_path, monkeypatch
):
    monkeypatch.setattr(rollouts, "RETRY_PAUSES", Backoff(0.001))
    path = tmp_path / "killed.py"
    path.write_text(f"import asyncio, subprocess\n{SOURCE}{KILLS}")
    runtime = forks(at=path)

    together = asyncio.Barrier(4)  # All are at work when the server dies, at each attempt.

    async def kill(run):
        await together.wait()
        await run.call_tool(ToolCall(id="1", name="kill_from_outside", arguments={}))

    async def play():
        return await rollout(TASK, kill, runtime=runtime, recorder=NullRecorder())

    runs = await asyncio.gather(*(play() for _ in range(4)))
    assert [(run.reward, run.failure_kind) for run in runs] == [(0.0, "agent")] * 4


@pytest.mark.slow
async def test_ends_while_other_children_still_begin_leave_the_warm_server_alive(forks, tmp_path):
    """A child that has not closed the descriptors of others yet holds the outputs of those that end meanwhile."""
    path = tmp_path / "slow_to_begin.py"
    path.write_text(
        SOURCE
        + f"""
os.register_at_fork(after_in_child=lambda: time.sleep(random.uniform(0, 0.05)))
print(os.getpid(), file=open({str(tmp_path / "imports")!r}, "a"))
"""
    )
    runtime = forks(at=path)

    async def play():
        for _ in range(8):
            async with runtime(TASK) as connection:
                await connection.start("one", {"word": "a"})
                assert (await connection.grade("a", None))["score"] == 1.0

    await asyncio.gather(*(play() for _ in range(16)))
    assert len((tmp_path / "imports").read_text().split()) == 1


async def test_closing_with_rollouts_in_flight_leaves_no_process(forks):
    runtime = forks()
    world = runtime(TASK)
    connection = await world.__aenter__()
    who = (await connection.call_tool("whoami", {})).result.structured_content
    detached = int((await connection.call_tool("spawn", {"detached": True})).result.text)
    await runtime.aclose()
    assert await gone(who["pid"], who["parent"], detached)
    with pytest.raises(InfrastructureFault):
        await connection.start("one", {})
    await world.__aexit__(None, None, None)


@pytest.mark.slow
async def test_a_cancelled_rollout_leaves_no_process(forks):
    runtime = forks()
    pids = []

    async def play():
        async with runtime(TASK) as connection:
            who = (await connection.call_tool("whoami", {})).result.structured_content
            pids.append(who["pid"])
            await connection.call_tool("hang", {})

    playing = asyncio.create_task(play())
    while not pids:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert await gone(*pids)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_the_end_of_the_process_that_plays_is_the_end_of_everything(source, how):
    script = textwrap.dedent(f"""
        import asyncio, os, signal, sys
        from hud.environment import Task
        from hud.eval import ForkRuntime
        async def main():
            world = ForkRuntime({str(source)!r})(Task(env="rough", id="one"))
            connection = await world.__aenter__()
            who = (await connection.call_tool("whoami", {{}})).result.structured_content
            spawned = (await connection.call_tool("spawn", {{"detached": True}})).result.text
            print(who["pid"], who["parent"], spawned, flush=True)
            if {how!r} == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(5)
        asyncio.run(main())
    """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) == 3, ended.stderr
    assert asyncio.run(gone(*pids))


@pytest.mark.slow
def test_a_runtime_may_be_used_by_one_event_loop_after_another(source):
    runtime = ForkRuntime(source)

    async def play():
        async with runtime(TASK) as connection:
            return (await connection.start("one", {"word": "x"})).prompt

    assert [asyncio.run(play()) for _ in range(2)] == ["Say x", "Say x"]
    asyncio.run(runtime.aclose())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("def broken(:", UsageError, r"env\.py:1: "),
        ("x = 1", UsageError, "no Environment"),
        ("1 / 0", UsageError, "ZeroDivisionError"),
        ("import sys; sys.exit(3)", UsageError, r"env.py:1: SystemExit: 3"),
        ("import os; os._exit(3)", EnvironmentFault, "exited with 3"),
        ("import os; os.kill(os.getpid(), 9)", InfrastructureFault, "was killed by SIGKILL"),
        (
            "import resource; from hud import Environment; env = Environment('full'); "
            "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
            InfrastructureFault,
            "could not be served: .*File too large",
        ),
        ("import time; time.sleep(60)", EnvironmentFault, r"was not imported within 1\.5 s"),
    ],
)
async def test_a_source_that_cannot_be_loaded_is_told_once(forks, tmp_path, text, error, words):
    path = tmp_path / "env.py"
    path.write_text(text)
    with pytest.raises(error, match=words):
        async with forks(at=path, startup_timeout=1.5 if "sleep" in text else 60)(TASK):
            pass


@pytest.mark.slow
async def test_a_live_environment_is_found_by_its_file(forks, source):
    async with forks(at=load_environment(source))(TASK) as connection:
        assert connection.name == "rough"


def test_an_environment_without_a_file_is_refused():
    made = eval(compile("Environment('x')", "<input>", "eval"), {"Environment": Environment})  # noqa: S307
    with pytest.raises(UsageError, match="pass its path"):
        ForkRuntime(made)


@pytest.mark.parametrize(
    "limits", [{"memory_mb": 0}, {"cpu_seconds": -1}, {"wall_seconds": float("nan")}]
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(UsageError, match="must be a positive number"):
        ForkRuntime("env.py", **limits)


@pytest.mark.slow
def test_the_warm_server_imports_nothing_heavy(source):
    script = (
        "import sys; from hud.eval.runtimes import zygote; from hud.environment import load_environment;"
        f"load_environment({str(source)!r});"
        "print({'torch', 'numpy', 'sqlalchemy', 'fastapi', 'httpx', 'matplotlib'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "set()"
