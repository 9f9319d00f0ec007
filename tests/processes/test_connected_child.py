"""Messages between a process and its child."""

import gc
import os
import signal
import sys
import threading
import time

import pytest

from hud.processes.connected_child import ChildEnded, ConnectedChild

ECHO = """
from hud.processes.connected_child import connection_to_parent
parent = connection_to_parent()
parent.send("ready")
while True:
    parent.send_bytes(parent.recv_bytes())
"""


@pytest.fixture
def start():
    children = []

    def started(code: str) -> ConnectedChild:
        children.append(ConnectedChild([sys.executable, "-c", code], stderr=-3))
        return children[-1]

    yield started
    for child in children:
        child.reap()


def test_a_message_may_be_larger_than_the_sockets_buffer(start):
    child = start(ECHO)
    message = os.urandom(5_000_000)
    with child.exchange(60) as connection:
        assert connection.recv() == "ready"
        sending = threading.Thread(target=connection.send_bytes, args=(message,))
        sending.start()
        assert connection.recv_bytes() == message
        sending.join()
    assert child.status is None


def test_death_during_the_handshake_has_its_status(start):
    with pytest.raises(ChildEnded) as ended, start("raise SystemExit(7)").exchange(60) as parent:
        parent.recv()
    assert (ended.value.status, ended.value.late) == (7, False)


def test_death_between_messages_is_noticed_at_the_next(start):
    child = start(ECHO)
    with child.exchange(60) as connection:
        connection.recv()
    child.signal(signal.SIGTERM)
    with pytest.raises(ChildEnded) as ended, child.exchange(60) as connection:
        connection.send_bytes(b"x")
        connection.recv_bytes()
    assert (ended.value.status, ended.value.late) == (-signal.SIGTERM, False)


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_child_that_never_answers_is_killed_at_the_limit(start, size):
    child = start("import time; time.sleep(60)")
    with pytest.raises(ChildEnded) as ended, child.exchange(0.2) as connection:
        connection.send_bytes(b"x" * size)  # A large one blocks: it is not read.
        connection.recv()
    assert (ended.value.status, ended.value.late) == (-signal.SIGKILL, True)


@pytest.mark.parametrize("cut", [b"\0\0", b"\0\0\1\0half"])
def test_a_message_cut_in_the_middle_is_its_end(start, cut):
    child = start(f"import os; os.write(0, {cut!r})")
    with pytest.raises(ChildEnded) as ended, child.exchange(60) as connection:
        connection.recv_bytes()
    assert (ended.value.status, ended.value.late) == (0, False)


def test_a_child_that_closes_its_connection_and_runs_on_is_killed(start):
    child = start("import os, time; os.close(0); time.sleep(60)")
    with pytest.raises(ChildEnded) as ended, child.exchange(60) as connection:
        connection.recv_bytes()
    assert (ended.value.status, ended.value.late) == (-signal.SIGKILL, False)


def test_it_ends_when_the_parents_side_is_closed(start):
    child = start(ECHO)
    child.connection.close()
    assert child.reap(60) == 1  # EOFError


def test_the_connection_is_not_its_childrens(start):
    code = "import subprocess; subprocess.Popen(['sleep', '60']); parent.send(1); os._exit(5)"
    child = start(ECHO.replace("while True", f"import os; {code}\nwhile True"))
    began = time.monotonic()
    with pytest.raises(ChildEnded) as ended, child.exchange(60) as connection:
        assert [connection.recv(), connection.recv()] == ["ready", 1]
        connection.recv()
    assert ended.value.status == 5
    assert time.monotonic() - began < 30


def test_a_program_that_is_missing_leaves_nothing_open():
    gc.collect()  # What earlier tests left open may be closed at any time.
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        ConnectedChild(["/nowhere/program"])
    assert len(os.listdir("/proc/self/fd")) <= len(before)
