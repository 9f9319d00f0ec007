"""Once an answer is graded nothing of its agent runs any more: no process, no connection, no later command."""

import asyncio
import shutil
from contextlib import suppress

import asyncssh
import pytest

from hud.capabilities.shell.ssh import SSHClient
from hud.environment import Environment, WorkspaceLimits
from hud.environment.channel import ControlServer
from hud.environment.current_run import entered
from hud.eval import LocalRuntime, Runtime
from hud.eval.rollouts import rollout
from hud.graders import BashGrader
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SMALL = WorkspaceLimits(memory_mb=256, processes=64, disk_mb=32, scratch_mb=8)
OVERWRITE = (
    "printf 'while :; do for f in tests/*.py; do echo \"import os; os._exit(0)\" > $f; done; done' > /tmp/loop;"
    "for i in 1 2 3 4; do setsid bash /tmp/loop >/dev/null 2>&1 & done; setsid sleep 1000 >/dev/null 2>&1 &"
)


def repairs(tmp_path, **options):
    """An environment whose hidden tests fail, and its workspace."""
    hidden = tmp_path / "tests"
    hidden.mkdir()
    (hidden / "check.py").write_text("raise SystemExit('the agent did nothing')\n")
    env = Environment("repairs")
    shell = env.workspace(limits=SMALL, **options)

    @env.template()
    async def repair():
        yield "Repair it."
        left = (await shell.bash("pgrep -f '[s]leep 1000'")).exit_code == 0
        await shell.copy_in(hidden, "tests")
        await asyncio.sleep(0.3)  # For whoever would overwrite them.
        score = await BashGrader.grade(
            command="for i in $(seq 20); do python3 -I tests/check.py && exit 0; done; exit 1",
            workspace=shell,
            **({"among_running": True} if options else {}),
        )
        yield {"score": score.value, "info": {"left": left, **score.info}}

    return env, repair


async def played(env, repair, agent):
    return await rollout(repair(), agent, runtime=LocalRuntime(env), recorder=NullRecorder())


@pytest.mark.slow
async def test_what_an_agent_left_running_has_ended_before_hidden_tests_come_in(tmp_path):
    async def agent(run):
        await (await run.open("ssh")).run(OVERWRITE, timeout=20)

    run = await played(*repairs(tmp_path), agent)
    assert (run.failure_kind, run.reward) == (None, 0.0), run.error
    assert run.grade.info["left"] is False


@pytest.mark.slow
async def test_a_connection_that_stays_starts_nothing_while_an_answer_is_graded(tmp_path):
    started, tasks = [], []

    async def meddle(connection, credentials):
        """Start commands on the connection, and on new ones, for as long as it goes."""
        while True:
            try:
                done = await connection.run(OVERWRITE, check=True)
                started.append(done)
            except (OSError, asyncssh.Error):
                with suppress(OSError, asyncssh.Error):
                    connection = await asyncssh.connect(**credentials)
            await asyncio.sleep(0)

    async def agent(run):
        (capability,) = [one for one in run.capabilities if one.protocol.startswith("ssh")]
        key = asyncssh.import_private_key(capability.params["client_key"])
        host, port = capability.url.removeprefix("ssh://").split(":")
        credentials = {
            "host": host,
            "port": int(port),
            "username": "agent",
            "client_keys": [key],
            "known_hosts": None,
            "config": [],
        }
        connection = await asyncssh.connect(**credentials)
        await connection.run("true", check=True)
        tasks.append(asyncio.create_task(meddle(connection, credentials)))
        await asyncio.sleep(0.1)

    env, repair = repairs(tmp_path)
    run = await played(env, repair, agent)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert started
    assert (run.failure_kind, run.reward) == (None, 0.0), run.error


async def test_a_command_alone_is_alone_also_beside_a_connected_agent():
    env = Environment("place")
    shell = env.workspace(limits=SMALL)
    async with env.run() as run:
        with entered(run):
            client = await SSHClient.connect(shell.opened.capability)
            grading = asyncio.create_task(
                shell.bash("sleep 0.5; ls; pgrep -c '[s]leep'", alone=True, timeout=20)
            )
            await asyncio.sleep(0.1)
            done = await client.run("touch meddled; echo done", timeout=20)
            outcome = await grading
            assert done.stdout.strip() == "done"  # It waited.
            assert "meddled" not in outcome.stdout
            assert outcome.stdout.split() == ["0"]
            await client.close()


@pytest.mark.parametrize("where", ["local", "tcp"])
async def test_tool_calls_that_are_left_running_end_and_later_ones_are_refused(where):
    env = Environment("tools")
    said, tasks, ended, begun = [], [], [], asyncio.Event()

    @env.tool
    async def meddle(seconds: float = 0.0) -> str:
        said.append(seconds)
        if seconds:
            begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(seconds)
            raise
        return "meddled"

    @env.template()
    async def task():
        yield "Work."
        assert 1000.0 in ended
        said.clear()
        await asyncio.sleep(0.3)
        yield float(not said)

    async def agent(run):
        connection = run.live.connection

        async def go_on():
            while True:
                await connection.call_tool("meddle", {})
                await asyncio.sleep(0)

        tasks.append(asyncio.create_task(connection.call_tool("meddle", {"seconds": 1000.0})))
        tasks.append(asyncio.create_task(go_on()))
        async with asyncio.timeout(20):
            await begun.wait()

    server = ControlServer(env)
    sockets = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{sockets.sockets[0].getsockname()[1]}"
    runtime = LocalRuntime(env) if where == "local" else Runtime(address)
    run = await rollout(task(), agent, runtime=runtime, recorder=NullRecorder())
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sockets.close()
    await server.sessions.close()
    assert (run.failure_kind, run.reward) == (None, 1.0), run.error


@pytest.mark.slow
async def test_servers_that_were_asked_for_go_on_where_the_workspace_says_so(tmp_path):
    env = Environment("servers")
    shell = env.workspace(limits=SMALL, keeps_running=True)
    asks = "python3 -I -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000\")'"

    @env.template()
    async def serve():
        yield "Serve this folder at port 8000."
        score = await BashGrader.grade(command=asks, workspace=shell, among_running=True)
        yield score.value

    async def agent(run):
        await (await run.open("ssh")).run(
            "setsid python3 -m http.server 8000 >/dev/null 2>&1 & "
            "until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done",
            timeout=20,
        )

    run = await played(env, serve, agent)
    assert (run.failure_kind, run.reward) == (None, 1.0), run.error
    shell.keeps_running = False
    run = await played(env, serve, agent)
    assert run.failure_kind == "grader"
    assert "keeps_running=True" in run.error


@pytest.mark.slow
async def test_a_session_that_goes_on_to_another_task_lets_its_agent_in_again(tmp_path):
    env, repair = repairs(tmp_path)
    (shell,) = env.parts.values()
    async with env.run() as run:
        for _ in range(2):
            await run.start(repair().id, {})
            client = await SSHClient.connect(run.parts.of(shell).capability)
            assert (await client.run("echo in", timeout=20)).stdout.strip() == "in"
            assert (await run.grade("", None))["score"] == 0.0
