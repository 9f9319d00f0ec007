"""A forked rollout waits for whatever a process can wait for, and holds nothing after its end."""

import asyncio
import contextlib
import os
import resource
import socket

import psutil
import pytest

from hud.environment import Task
from hud.errors import EnvironmentFault, InfrastructureFault
from hud.eval import ForkRuntime
from hud.eval.runtimes.child import Limits

SOURCE = '''
import asyncio, os, signal, socket, threading, time
from hud.environment import Environment

env = Environment("waits")
kept = []
closed = []


@env.template(id="plain")
async def plain(word: str = ""):
    yield str(os.getpid())
    yield 1.0


@env.template(id="cleans")
async def cleans():
    try:
        yield "hello"
        yield 1.0
    finally:
        await asyncio.sleep(0)
        closed.append("closed")


@env.template(id="background")
async def background():
    """Start a task that goes on while nothing is asked for."""
    async def tick():
        while True:
            await asyncio.sleep(0.01)
            kept.append(time.monotonic())
    env.state.ticking = asyncio.create_task(tick())
    yield "hello"
    yield float(len(kept) > 3)


@env.template(id="thread")
async def thread():
    """Start a thread that calls back while nothing is asked for."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    def call():
        time.sleep(0.05)
        loop.call_soon_threadsafe(told.set)
    threading.Thread(target=call).start()
    yield "hello"
    async with asyncio.timeout(5):
        await told.wait()
    yield 1.0


@env.tool
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@env.tool
async def limited() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        return "timed out"


@env.tool
def threaded() -> str:
    return threading.current_thread().name


@env.tool
async def program() -> str:
    process = await asyncio.create_subprocess_exec("echo", "said", stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return said.decode().strip()


@env.tool
async def listener() -> str:
    """Serve and ask over a socket of this process."""
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"over a socket\\n")
    said = await reader.readline()
    writer.close()
    server.close()
    return said.decode().strip()


@env.tool
async def busy(turns: int) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return "done"


@env.tool
async def signalled() -> str:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await told.wait()
    return "signalled"


@env.tool
async def foreign() -> str:
    """Wait for a thread that Python did not start, as a library's own would be: here the interpreter's lowest kind."""
    import _thread
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    def call():
        time.sleep(0.05)
        loop.call_soon_threadsafe(future.set_result, "told")
    _thread.start_new_thread(call, ())
    return await future


@env.tool
async def large(size: int) -> str:
    return "x" * size


@env.tool
async def bind(port: int) -> str:
    """Listen on a port, until the end of the process."""
    kept.append(socket.create_server(("127.0.0.1", port)))
    return "bound"


@env.tool
async def stay() -> str:
    """Keep the process from exiting, as the last thing that it does."""
    os._exit = lambda _: time.sleep(600)
    return str(os.getpid())


@env.tool
async def closings() -> str:
    return ",".join(closed)


@env.tool
async def sockets() -> dict:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {"files": [os.readlink(link) for link in links if os.path.lexists(link)]}
'''


@pytest.fixture
async def runtime(tmp_path):
    (tmp_path / "env.py").write_text(SOURCE)
    before = set(psutil.Process().children(recursive=True))
    runtime = ForkRuntime(tmp_path / "env.py")
    yield runtime
    await runtime.aclose()
    assert set(psutil.Process().children(recursive=True)) <= before


def task(name: str) -> Task:
    return Task(env="waits", id=name, args={})


async def play(runtime, name: str, *calls) -> tuple[list[str], dict]:
    """Play a task; return the texts of its tool calls, and its grade."""
    async with runtime(task(name)) as connection:
        await connection.start(name, {})
        said = [(await connection.call_tool(tool, args)).result.text for tool, args in calls]
        return said, await connection.grade("", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "args", "said"),
    [
        ("sleep", {"seconds": 0.05}, "slept"),
        ("limited", {}, "timed out"),
        ("program", {}, "said"),
        ("listener", {}, "over a socket"),
        ("busy", {"turns": 5000}, "done"),
        ("signalled", {}, "signalled"),
        ("foreign", {}, "told"),
    ],
)
async def test_a_tool_may_wait_for_anything(runtime, tool, args, said):
    async with asyncio.timeout(30):
        texts, grade = await play(runtime, "plain", (tool, args), (tool, args))
    assert texts == [said, said]
    assert grade["score"] == 1.0


@pytest.mark.slow
async def test_a_sync_tool_runs_in_a_thread(runtime):
    (name, again), grade = await play(runtime, "plain", ("threaded", {}), ("threaded", {}))
    assert "MainThread" not in (name, again)
    assert grade["score"] == 1.0


@pytest.mark.slow
async def test_a_task_of_the_template_goes_on_between_two_requests(runtime):
    async with runtime(task("background")) as connection:
        await connection.start("background", {})
        await asyncio.sleep(0.3)
        assert (await connection.grade("", None))["score"] == 1.0


async def test_a_thread_of_the_template_calls_back_between_two_requests(runtime):
    _, grade = await play(runtime, "thread")
    assert grade["score"] == 1.0


async def test_large_frames_arrive_in_both_directions(runtime):
    size = 8 << 20
    async with runtime(task("plain")) as connection:
        await connection.start("plain", {"word": "y" * size})
        outcome = await connection.call_tool("large", {"size": 60_000})
        assert len(outcome.result.text) == 60_000
        assert (await connection.grade("z" * 100_000, None))["score"] == 1.0


async def test_a_call_can_be_cancelled_while_it_waits(runtime):
    async with runtime(task("plain")) as connection:
        await connection.start("plain", {})
        waiting = asyncio.create_task(connection.call_tool("sleep", {"seconds": 60}))
        await asyncio.sleep(0.05)
        await connection.cancel()
        with pytest.raises(EnvironmentFault, match=r"tasks\.cancel interrupted"):
            await waiting


@pytest.mark.slow
async def test_what_a_run_held_open_is_free_for_the_next_one(tmp_path):
    # A process of that size takes long to exit.
    (tmp_path / "env.py").write_text(f"{SOURCE}\nballast = b'x' * (512 << 20)\n")
    runtime = ForkRuntime(tmp_path / "env.py")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with contextlib.aclosing(runtime), contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            following = await stack.enter_async_context(runtime(task("plain")))
            await following.start("plain", {})
            texts, grade = await play(runtime, "plain", ("bind", {"port": port}))
            assert texts == ["bound"]
            assert grade["score"] == 1.0
            outcome = await following.call_tool("bind", {"port": port})
            assert outcome.result.text == "bound"
            await stack.aclose()


@pytest.mark.slow
async def test_a_process_that_does_not_exit_after_its_run_is_killed(runtime):
    (pid,), grade = await play(runtime, "plain", ("stay", {}))
    assert grade["score"] == 1.0
    async with asyncio.timeout(20):
        while psutil.pid_exists(int(pid)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await play(runtime, "plain", ("busy", {"turns": 1})) == (["done"], grade)


async def test_a_second_task_may_follow_on_the_same_connection(runtime):
    async with runtime(task("plain")) as connection:
        for _ in range(3):
            await connection.start("plain", {})
            assert (await connection.grade("", None))["score"] == 1.0
        await connection.start("cleans", {})
        await connection.cancel()
        assert (await connection.call_tool("closings", {})).result.text == "closed"


@pytest.mark.slow
async def test_a_peer_that_leaves_in_the_middle_ends_the_process(runtime):
    async with runtime(task("cleans")) as connection:
        await connection.start("cleans", {})
        (child,) = runtime._server.children.values()
        await connection.leave()
        async with asyncio.timeout(5):
            end = await child.ended
        assert end["status"] == 0


@pytest.mark.slow
async def test_rollouts_that_begin_together_share_nothing(runtime):
    number = 24

    async def one(stack):
        connection = await stack.enter_async_context(runtime(task("plain")))
        pid = (await connection.start("plain", {})).prompt
        return pid, (await connection.call_tool("sockets", {})).result.structured_content

    async with contextlib.AsyncExitStack() as stack:
        found = await asyncio.gather(*(one(stack) for _ in range(number)))
        assert len({pid for pid, _ in found}) == number
        links = [link for _, files in found for link in files["files"]]
        own = [link for link in links if link.startswith(("socket:", "pipe:"))]
        assert len(own) == len(set(own)) + number  # Its output is open twice, as 1 and 2.
        assert {len(files["files"]) for _, files in found} == {len(found[0][1]["files"])}


@pytest.mark.slow
async def test_a_server_without_descriptors_refuses_what_it_cannot_fork(runtime):
    async with runtime(task("plain")) as connection:
        await connection.start("plain", {})
        server = runtime._server
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 1, hard))
        async with asyncio.timeout(10):
            for _ in range(3):
                child = await server.fork(Limits())
                with pytest.raises(InfrastructureFault, match=r"it was not forked: .*open files"):
                    await child.connection.start("plain", {})
                await child.close()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    texts, _ = await play(runtime, "plain", ("busy", {"turns": 1}))
    assert texts == ["done"]
