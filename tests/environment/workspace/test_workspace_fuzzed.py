"""Whatever an agent sends to its workspace's server, the workspace stays up, and no failure is but the agent's own."""

import asyncio
import itertools
import shutil
from contextlib import suppress

import asyncssh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.environment import Environment, WorkspaceLimits
from hud.environment.current_run import entered
from hud.eval import LocalRuntime
from hud.eval.rollouts import rollout
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SMALL = WorkspaceLimits(memory_mb=256, processes=64, disk_mb=32, scratch_mb=8)
sides = st.one_of(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 65_535, 65_536, 2**31, 2**32 - 1])
)
sizes = st.tuples(sides, sides, sides, sides)
words = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "\0", "true\0false", "cat", "exit 300", "kill -9 1", "x" * 140_000]),
)
signals = st.sampled_from(["INT", "KILL", "TERM", "USR1", "NOPE", "", "é", "-1", "0", "RTMAX"])


@st.composite
def sessions(draw):
    """What a client may ask for in one session, and send there."""
    kind = draw(st.sampled_from(["exec", "shell", "sftp", "subsystem"]))
    return {
        "command": draw(words) if kind == "exec" else None,
        "subsystem": {"sftp": "sftp", "subsystem": draw(words)}.get(kind),
        "term_type": draw(st.one_of(st.none(), words)),
        "term_size": draw(sizes),
        "env": draw(st.dictionaries(words, words, max_size=2)),
        "input": draw(st.lists(st.binary(max_size=300), max_size=3)),
        "then": draw(
            st.lists(
                st.one_of(st.tuples(st.just("size"), sizes), st.tuples(st.just("signal"), signals)),
                max_size=3,
            )
        ),
        "eof": draw(st.booleans()),
    }


async def connected(capability):
    host, port = capability.url.removeprefix("ssh://").split(":")
    return await asyncssh.connect(
        host,
        int(port),
        username="agent",
        client_keys=[asyncssh.import_private_key(capability.params["client_key"])],
        known_hosts=None,
        config=[],
    )


async def speak(connection, wanted):
    """Carry one session out; whatever the server answers is right."""
    wanted = dict(wanted)
    pieces, then, eof = (wanted.pop(name) for name in ("input", "then", "eof"))
    with suppress(asyncssh.Error, OSError, TimeoutError, ValueError):
        async with asyncio.timeout(0.5):
            process = await connection.create_process(**wanted, encoding=None)
            try:
                for piece in pieces:
                    process.stdin.write(piece)
                for what, value in then:
                    if what == "size":
                        process.change_terminal_size(*value)
                    else:
                        process.send_signal(value)
                if eof:
                    process.stdin.write_eof()
                    await process.wait()
            finally:
                process.close()


async def is_up(shell, connection):
    async with asyncio.timeout(20):
        done = await connection.run("echo up", check=True)
        return done.stdout == "up\n" and (await shell.bash("true")).exit_code == 0


@pytest.mark.slow
def test_a_workspace_outlasts_whatever_is_asked_of_its_server():
    env = Environment("place")
    shell = env.workspace(limits=SMALL)
    with asyncio.Runner() as runner:
        run = env.run()
        runner.run(run.__aenter__())
        opened = run.parts.of(shell)
        connections = []

        async def session(wanted):
            with entered(run):
                if not connections or connections[0].is_closed():
                    connections[:] = [await connected(opened.capability)]
                await speak(connections[0], wanted)
                if connections[0].is_closed():
                    connections[:] = [await connected(opened.capability)]
                assert await is_up(shell, connections[0])
                assert opened.fault() is None

        @settings(max_examples=60)
        @given(sessions())
        def property_(wanted):
            runner.run(session(wanted))

        property_()
        runner.run(run.__aexit__())


@pytest.mark.parametrize("size", [(65_536, 1), (1, 65_536), (2**32 - 1, 2**32 - 1), (0, 0)])
async def test_a_terminal_of_any_size_is_one(size):
    env = Environment("place")
    shell = env.workspace(limits=SMALL)

    @env.template()
    async def look():
        yield "Open a terminal."
        yield float((await shell.read("size")) != b"")

    async def agent(run):
        (capability,) = run.capabilities
        async with await connected(capability) as connection:
            process = await connection.create_process(
                "stty size > size; echo written; cat", term_type="xterm", term_size=(*size, 0, 0)
            )
            process.change_terminal_size(2**32 - 1, 70_000)
            await asyncio.wait_for(process.stdout.readuntil("written"), 30)
            process.terminate()

    run = await rollout(look(), agent, runtime=LocalRuntime(env), recorder=NullRecorder())
    assert (run.failure_kind, run.reward) == (None, 1.0), run.error


whole = st.integers(-(2**40), 2**40).map(lambda number: str(number).encode())
words = st.binary(max_size=5) | whole
packets = st.one_of(
    st.binary(max_size=200),
    st.tuples(
        st.sampled_from(
            [b"spawn", b"signal", b"listen", b"dial", b"kill_all", b"start", b"", b"\xff"]
        ),
        st.just(b"") | whole | st.binary(max_size=5),
        st.lists(words, max_size=8),
    ).map(lambda packet: b"\0".join([packet[0], packet[1], *packet[2]])),
    st.tuples(
        st.sampled_from([b"", b"group"]),
        st.just((b"", b"")) | st.tuples(whole, whole),
        words,
        words,
        st.lists(st.binary(max_size=9), max_size=4),
    ).map(
        lambda packet: b"\0".join(
            [b"spawn", b"7", packet[0], *packet[1], packet[2], packet[3], *packet[4]]
        )
    ),
)


@pytest.mark.slow
def test_the_supervisor_outlasts_whatever_packet_it_is_sent():
    env = Environment("place")
    shell = env.workspace(limits=SMALL)
    with asyncio.Runner() as runner:
        run = env.run()
        runner.run(run.__aenter__())
        opened = run.parts.of(shell)
        # Above every number that a packet may name: the supervisor's answer to a packet is nobody else's.
        opened.sandbox._numbers = itertools.count(2**50)

        async def sent(packet):
            with entered(run), suppress(BlockingIOError):
                opened.sandbox._control.send(packet or b"0")
                assert (await shell.bash("true")).exit_code == 0

        @settings(max_examples=150)
        @given(packets)
        def property_(packet):
            runner.run(sent(packet))

        property_()
        assert opened.fault() is None
        runner.run(run.__aexit__())


async def test_a_world_that_dies_of_what_its_agent_did_is_the_agents_failure():
    env = Environment("place")
    shell = env.workspace(limits=SMALL)

    @env.template()
    async def stay():
        yield "Stay."
        yield 1.0

    def agent(used, end):
        async def play(run):
            if used:
                await (await run.open("ssh")).run("true")
            sandbox = run.live.connection.parts.of(shell).sandbox
            end(sandbox)
            async with asyncio.timeout(20):
                await sandbox._listening

        return play

    def from_inside(sandbox):
        """As if a way had been found to end process 1."""
        sandbox._control.shutdown(1)

    def from_outside(sandbox):
        sandbox.launch.process.kill()

    for used, end, expected in (
        (True, from_inside, ("agent", 0.0)),
        (False, from_inside, ("environment", None)),
        (True, from_outside, ("environment", None)),
    ):
        run = await rollout(
            stay(), agent(used, end), runtime=LocalRuntime(env), recorder=NullRecorder()
        )
        assert (run.failure_kind, run.reward) == expected, (used, end, run.error)
