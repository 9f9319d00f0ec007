"""A child process: its end, its last output, and what it leaves behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hud.processes.child import Child


def python(code: str, **options) -> Child:
    return Child([sys.executable, "-c", code], **options)


def runs(pid: int) -> bool:
    """Whether a process runs; one that waits to be reaped by another has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def is_reaped(child: Child) -> bool:
    return not Path(f"/proc/{child.pid}").exists()


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM)],
)
async def test_the_end_has_an_exit_code_or_a_signal(code, status):
    child = python(code)
    assert await child.ended() == status
    assert child.status == status
    assert await child.ended() == status
    assert await child.end() == status
    assert is_reaped(child)


async def test_many_wait_for_the_same_end():
    child = python("input()", stdin=subprocess.PIPE)
    waiting = [asyncio.create_task(child.ended()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting.pop().cancel()
    (await child.input()).close()
    assert set(await asyncio.gather(*waiting)) == {1}  # EOFError
    await child.end()


async def test_without_a_pidfd_its_end_is_noticed(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    assert await python("raise SystemExit(4)").ended() == 4


async def test_a_cancelled_wait_leaves_it_running():
    async with python("import time; time.sleep(60)") as child:
        waiting = asyncio.create_task(child.ended())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert child.status is None
    assert is_reaped(child)


async def test_a_cancelled_block_ends_it():
    children = []

    async def work():
        async with python("import time; time.sleep(60)") as child:
            children.append(child)
            await child.ended()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait([task])
    assert is_reaped(children[0])


async def test_a_cancelled_end_is_an_end_without_patience():
    child = python("import time; time.sleep(60)")
    ending = asyncio.create_task(child.end(60))
    await asyncio.sleep(0.05)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert is_reaped(child)


async def test_an_end_has_patience():
    child = python("import time; time.sleep(0.2)")
    assert await child.end(60) == 0


async def test_a_child_that_ignores_a_signal_is_killed():
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(60)"
    child = python(f"import sys; sys.stdout.reconfigure(line_buffering=True)\n{code}", stdout=-1)
    assert await (await child.output()).readline() == b"on\n"
    child.signal(signal.SIGTERM)
    assert await child.end(0.1) == -signal.SIGKILL


async def test_what_it_started_is_killed_too():
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    async with python(code, stdout=subprocess.PIPE) as child:
        output = await child.output()
        grandchild = int(await output.readline())
        assert await child.ended() == 0  # Not the end of its output, which the grandchild holds.
        assert runs(grandchild)
    for _ in range(100):
        if not runs(grandchild):
            break
        await asyncio.sleep(0.02)
    assert not runs(grandchild)


async def test_its_last_words_are_the_end_of_its_error_output():
    pieces = []
    code = "import sys; sys.stderr.write('x' * 300_000 + 'the cause'); raise SystemExit(1)"
    async with python(code, stderr=subprocess.PIPE) as child:
        errors = await child.errors(pieces.append)
        assert await child.ended() == 1
        words = await errors.text()
    assert words.endswith("xxxthe cause")
    assert len(words) == 4000
    assert sum(map(len, pieces)) == 300_009


async def test_last_words_do_not_wait_for_a_descendant_with_the_pipe():
    code = "import os, subprocess; os.write(2, b'last'); subprocess.Popen(['sleep', '60'])"
    async with python(code, stderr=subprocess.PIPE) as child:
        errors = await child.errors()
        assert await child.ended() == 0
        assert await errors.text() == "last"


async def test_input_is_larger_than_a_pipe():
    code = "import sys; print(len(sys.stdin.buffer.read()))"
    async with python(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        input_ = await child.input()
        input_.write(b"x" * 1_000_000)
        input_.write_eof()
        assert await (await child.output()).read() == b"1000000\n"


async def test_a_program_that_is_missing_is_an_error_of_the_start():
    with pytest.raises(FileNotFoundError):
        Child(["/nowhere/program"])


def test_a_thread_ends_it_without_an_event_loop():
    child = python("import time; time.sleep(60)", stdout=subprocess.PIPE)
    began = time.monotonic()
    assert child.reap(0.1) == -signal.SIGKILL
    assert time.monotonic() - began >= 0.1
    assert is_reaped(child)
    assert child.reap() == -signal.SIGKILL


def test_it_inherits_the_descriptors_that_are_named_and_no_others():
    reading, writing = os.pipe()
    hidden = os.dup(writing)
    os.set_inheritable(hidden, True)
    code = f"import os; os.write({writing}, b'there'); os.write({hidden}, b'hidden')"
    child = python(code, descriptors=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    os.close(hidden)
    with open(reading, "rb") as file:
        assert file.read() == b"there"
    assert child.reap(60) == 1


def test_it_has_a_session_of_its_own():
    child = python("input()", stdin=subprocess.PIPE)
    assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid
    child.reap()
