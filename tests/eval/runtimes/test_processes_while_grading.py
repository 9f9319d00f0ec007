"""What tools left running, while their run is graded and afterwards: what docs/security.md promises of each runtime."""

import asyncio
import contextlib
import os
import signal
import textwrap

import psutil
import pytest

from hud.environment import Task
from hud.errors import AgentFault, GraderFault
from hud.eval import ForkRuntime, LocalRuntime, SubprocessRuntime

SOURCE = textwrap.dedent(
    '''
    import asyncio
    import os
    import subprocess
    import sys
    import time
    from pathlib import Path

    from hud.environment import Environment

    FOLDER = Path(__file__).parent
    DATABASE = FOLDER / "database"
    env = Environment("leaving", keeps_running=KEEPS_RUNNING)

    # Each is a program that goes on to forge the graded file, and says its process's id once.
    FORGE = """
    import os, time
    open("pids", "a").write(f"{os.getpid()}\\\\n")
    def forge():
        while True:
            open("forged", "w").write("right")
            os.replace("forged", "database")
            time.sleep(0.001)
    """
    PLAIN = FORGE + "forge()"
    DAEMON = "import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\n" + PLAIN
    # Its first thread ends: it looks like a zombie.
    THREADED = FORGE + "import ctypes, threading\\nthreading.Thread(target=forge).start()\\nctypes.CDLL(None).pthread_exit(None)"
    DEAF = "import signal\\nfor n in (1, 2, 3, 15, 20): signal.signal(n, signal.SIG_IGN)\\n" + PLAIN
    # A pair, of which each starts the other again.
    WATCHED = "import subprocess, sys\\n" + (
        "while True: subprocess.run([sys.executable, '-c', " + repr(PLAIN) + "])"
    )
    # It is another process every few milliseconds.
    HOPPING = FORGE + (
        "while True:\\n"
        "    if os.fork(): os._exit(0)\\n"
        "    os.setsid()\\n"
        "    open('forged', 'w').write('right')\\n"
        "    os.replace('forged', 'database')\\n"
        "    time.sleep(0.002)"
    )

    async def first_pid():
        while not (FOLDER / "pids").exists() or not (FOLDER / "pids").read_text().endswith("\\n"):
            await asyncio.sleep(0.005)
        return int((FOLDER / "pids").read_text().split()[0])

    @env.tool
    async def leave(kind: str) -> int:
        subprocess.Popen([sys.executable, "-c", globals()[kind]], cwd=FOLDER)
        return await first_pid()

    @env.tool
    async def wait_for_it() -> int:
        return await first_pid()

    @env.tool
    def leave_what_cannot_be_ended() -> int:
        # As root's process would be for a user's: signals are refused.
        from hud.environment.processes import run_processes

        def refused(pid, number):
            raise PermissionError
        run_processes.kill, run_processes.END_SECONDS = refused, 0.05
        return subprocess.Popen(["sleep", "600"], cwd=FOLDER).pid

    @env.tool
    def insist() -> None:
        while True:
            subprocess.run([sys.executable, "-c", PLAIN], cwd=FOLDER)

    @env.template()
    async def graded(wait: float):
        yield "Write the right answer into the database."
        DATABASE.write_text("wrong")
        until = time.monotonic() + wait
        while DATABASE.read_text() != "right":
            await asyncio.sleep(0.005)
            if time.monotonic() > until:
                yield 0.0
                return
        yield 1.0

    # A part of another environment, which a tool opens.
    TALKER = """
    from mcp.server.mcpserver import MCPServer
    server = MCPServer("talker")
    @server.tool()
    def talk() -> str:
        return "still here"
    server.run()
    """
    other = Environment("other")
    other.connect_mcp([sys.executable, "-c", TALKER], name="talker")

    @env.tool
    async def open_part() -> int:
        env.state.part = other.run()
        await env.state.part.open()
        return 0

    @env.template()
    async def talked():
        yield "Open the part."
        said = (await env.state.part.call_tool("talk", {})).result.text
        await env.state.part.close()
        yield float(said == "still here")

    # Answers each line with the id of a process that it starts for it, as a database does for a connection.
    SERVER = """
    import subprocess, sys
    for line in sys.stdin:
        worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
        print(worker.pid, flush=True)
    """

    @env.initialize
    def start_server():
        env.state.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @env.shutdown
    def stop_server():
        env.state.server.kill()

    def asked():
        env.state.server.stdin.write("?\\n")
        env.state.server.stdin.flush()
        return int(env.state.server.stdout.readline())

    @env.tool
    def ask() -> int:
        return asked()

    @env.template()
    async def served():
        yield "Ask the server."
        workers = (asked(), int((FOLDER / "worker").read_text()))
        alive = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] for pid in workers]
        for pid in workers:
            os.kill(pid, 9)
        yield float("Z" not in alive)

    @env.tool
    def start_application() -> int:
        env.state.application = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return env.state.application.pid

    @env.template()
    async def application():
        yield "Start the application."
        env.state.application.stdin.write(b"?\\n")
        env.state.application.stdin.flush()
        yield float(env.state.application.stdout.readline() == b"?\\n")
    '''
)
OF_ITS_OWN = [ForkRuntime, SubprocessRuntime]
ATTACKS = ["PLAIN", "DAEMON", "THREADED", "DEAF", "WATCHED", "HOPPING"]


@pytest.fixture
def source(tmp_path):
    """Return a function that writes the environment; what its tools started is ended with the test."""

    def written(*, keeps_running=False):
        path = tmp_path / "env.py"
        path.write_text(SOURCE.replace("KEEPS_RUNNING", str(keeps_running)))
        return f"{path}:env"

    yield written
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(tmp_path):
                process.kill()


@contextlib.asynccontextmanager
async def started(kind, source, template, args=None):
    runtime = kind(source)
    try:
        async with runtime(Task(env="leaving", id=template)) as connection:
            await connection.start(template, args or {})
            yield connection
    finally:
        close = getattr(runtime, "aclose", None)
        if close is not None:
            await close()


async def left(connection, tool, **arguments):
    return int((await connection.call_tool(tool, arguments)).result.text)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_tools_left_running_is_gone_before_the_grade(source, attack):
    async with started(ForkRuntime, source(), "graded", {"wait": 0.2}) as connection:
        await left(connection, "leave", kind=attack)
        grade = await connection.grade("done", None)
        assert grade["score"] == 0.0
        assert grade["info"]["ended_before_grading"]


@pytest.mark.slow
async def test_a_call_that_nothing_can_end_starts_nothing_more(source):
    async with started(ForkRuntime, source(), "graded", {"wait": 0.5}) as connection:
        insisting = asyncio.create_task(connection.call_tool("insist", {}))
        await left(connection, "wait_for_it")
        assert (await connection.grade("done", None))["score"] == 0.0
        insisting.cancel()


@pytest.mark.slow
async def test_what_cannot_be_ended_is_the_agents_failure(source):
    async with started(ForkRuntime, source(), "graded", {"wait": 0.0}) as connection:
        await left(connection, "leave_what_cannot_be_ended")
        with pytest.raises(AgentFault, match=r"could not be ended before grading: sleep"):
            await connection.grade("done", None)


@pytest.mark.slow
async def test_so_it_is_in_an_interpreter_of_its_own(source):
    async with started(SubprocessRuntime, source(), "graded", {"wait": 0.2}) as connection:
        await left(connection, "leave", kind="DAEMON")
        assert (await connection.grade("done", None))["score"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
async def test_where_the_environment_keeps_it_running_it_forges_the_grade(source, attack):
    kept = source(keeps_running=True)
    async with started(ForkRuntime, kept, "graded", {"wait": 20.0}) as connection:
        await left(connection, "leave", kind=attack)
        assert (await connection.grade("done", None))["score"] == 1.0


async def test_in_the_callers_process_it_goes_on(source):
    async with started(LocalRuntime, source(), "graded", {"wait": 20.0}) as connection:
        pid = await left(connection, "leave", kind="DAEMON")
        assert (await connection.grade("done", None))["score"] == 1.0
    assert psutil.Process(pid).is_running()


@pytest.mark.parametrize("kind", OF_ITS_OWN)
async def test_what_the_environment_started_before_its_prompt_goes_on(source, tmp_path, kind):
    async with started(kind, source(), "served") as connection:
        (tmp_path / "worker").write_text(str(await left(connection, "ask")))
        await left(connection, "leave", kind="PLAIN")
        grade = await connection.grade("done", None)
        assert grade["score"] == 1.0
        assert len(grade["info"]["ended_before_grading"]) == 1


@pytest.mark.slow
async def test_parts_that_open_after_the_prompt_go_on(source):
    async with started(ForkRuntime, source(), "talked") as connection:
        await left(connection, "open_part")
        await left(connection, "leave", kind="PLAIN")
        grade = await connection.grade("done", None)
        assert grade["score"] == 1.0
        assert len(grade["info"]["ended_before_grading"]) == 1


@pytest.mark.slow
async def test_a_grader_that_needs_a_process_of_a_tool_s_says_how_to_keep_it(source):
    async with started(ForkRuntime, source(), "application") as connection:
        await left(connection, "start_application")
        with pytest.raises(GraderFault, match=r"ended: cat\..*keeps_running=True"):
            await connection.grade("done", None)
    kept = source(keeps_running=True)
    async with started(ForkRuntime, kept, "application") as connection:
        await left(connection, "start_application")
        assert (await connection.grade("done", None))["score"] == 1.0


@pytest.mark.parametrize("kind", OF_ITS_OWN)
@pytest.mark.parametrize("crashes", [False, True])
async def test_daemons_end_with_the_run(source, kind, crashes):
    kept = source(keeps_running=True)
    async with started(kind, kept, "graded", {"wait": 0.0}) as connection:
        pid = await left(connection, "leave", kind="DAEMON")
        assert psutil.Process(pid).is_running()
        if crashes:
            # The environment's process: that of which the server's worker is a grandchild.
            worker = psutil.Process(await left(connection, "ask"))
            os.kill(worker.parents()[1].pid, signal.SIGKILL)
    assert await ended(pid)


async def ended(pid, seconds=30.0):
    async with asyncio.timeout(seconds):
        while psutil.pid_exists(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    break
            await asyncio.sleep(0.05)
    return True
