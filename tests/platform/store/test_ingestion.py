"""Large batches are ingested in a process beside, with the results and errors of ingestion here."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from multiprocessing import Pipe
from threading import Thread

import orjson
import pytest
import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError
from hud.platform.store import Store, tables
from hud.platform.store import ingestion as module
from hud.platform.store.ingestion import Ingestion
from hud.trace.recording.journal import encode_event, encode_json

WAIT_SECONDS = 60


def lines(first, count, size=100):
    """The starts of jobs, of about `size` bytes each."""
    return b"".join(
        encode_event(
            b"J",
            f"{number:032x}",
            0,
            encode_json(
                {
                    "name": "x" * size,
                    "taskset_id": None,
                    "group_size": 1,
                    "pid": None,
                    "process_started": None,
                    "host": "here",
                    "at": 1,
                }
            ),
        )
        for number in range(first, first + count)
    )


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(tmp_path)) as opened:
        yield opened


@pytest.fixture
def ingestion(store):
    with closing(Ingestion(store)) as opened:
        yield opened


def taken_beside(ingestion, monkeypatch):
    """Have batches ingested until the process beside takes them; return the number of lines so far."""
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    here, ingest = [], module.ingest
    monkeypatch.setattr(module, "ingest", lambda *given: here.append(1) or ingest(*given))
    count, deadline = 0, time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        before = len(here)
        ingestion.take(lines(count, 1), "local")
        count += 1
        if len(here) == before:
            return count
        time.sleep(0.05)
    raise AssertionError("no process beside")


def jobs(store):
    return store.value(sa.select(sa.func.count()).select_from(tables.jobs))


def gone(pid):
    """True once no process has that id, or only its entry is left."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_small_batches_start_no_process(ingestion, store):
    assert ingestion.take(lines(0, 10), "local").events == 10
    assert ingestion.pid is None
    assert jobs(store) == 10


def test_lines_are_stored_wherever_they_are_ingested(ingestion, store, monkeypatch):
    count = taken_beside(ingestion, monkeypatch)
    damaged = lines(count, 3).replace(b"here", b"hare", 1)
    found = ingestion.take(damaged, "local")
    assert (found.events, found.damaged) == (2, [0])
    assert ingestion.take(lines(0, count), "local").events == count  # Again, which changes nothing.
    assert jobs(store) == count + 2


def test_an_error_beside_is_the_error_here(ingestion, monkeypatch):
    count = taken_beside(ingestion, monkeypatch)
    pid = ingestion.pid
    with pytest.raises(NotFoundError, match="not of this key's team"):
        ingestion.take(lines(0, count), "another-team")
    assert ingestion.pid == pid


def test_a_process_that_was_killed_loses_nothing(ingestion, store, monkeypatch):
    count = taken_beside(ingestion, monkeypatch)
    os.kill(ingestion.pid, signal.SIGKILL)
    for number in range(3):
        assert ingestion.take(lines(count + number, 1), "local").events == 1
    assert jobs(store) == count + 3
    assert ingestion.pid is not None, "the next large batch starts another"


def test_a_process_that_stands_still_holds_nobody_up(ingestion, store, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1)
    count = taken_beside(ingestion, monkeypatch)
    pid = ingestion.pid
    os.kill(pid, signal.SIGSTOP)
    big = lines(count, 40, size=100_000)  # More than its socket takes.
    assert ingestion.take(big, "local").events == 40
    assert jobs(store) == count + 40
    assert gone(pid)


def test_a_process_that_cannot_start_is_tried_once(ingestion, store, monkeypatch):
    monkeypatch.setattr(module, "LARGE_BYTES", 1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    deadline = time.monotonic() + WAIT_SECONDS
    pids, count = set(), 0
    while (count < 2 or ingestion.pid is not None) and time.monotonic() < deadline:
        ingestion.take(lines(count, 1), "local")
        pids.add(ingestion.pid)
        count += 1
        time.sleep(0.05)
    ingestion.take(lines(count, 1), "local")
    assert len(pids - {None}) <= 1
    assert ingestion.pid is None
    assert jobs(store) == count + 1


def test_a_store_that_is_gone_is_for_the_owner_to_report(tmp_path):
    ours, theirs = Pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", module.__name__, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.PIPE,
    )
    theirs.close()
    gone = tmp_path / "gone"
    ours.send_bytes(orjson.dumps([f"sqlite:///{gone}/hud.db", str(gone)]))
    _, said = process.communicate(timeout=WAIT_SECONDS)
    assert said == b""
    assert process.returncode == 0


def test_it_ends_with_the_platform(ingestion, monkeypatch):
    taken_beside(ingestion, monkeypatch)
    pid = ingestion.pid
    ingestion.close()
    assert gone(pid)


def test_it_ends_with_an_owner_that_was_killed(tmp_path):
    script = f"""
        import sys, time
        from pathlib import Path
        from hud.platform.store import Store, ingestion
        ingestion.LARGE_BYTES = 1
        one = ingestion.Ingestion(Store.open(Path({str(tmp_path)!r})))
        one.take(b"", "local")
        one.take(b"x", "local")
        print(one.pid, flush=True)
        time.sleep(600)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    assert gone(pid)


def test_it_ends_when_it_is_idle(tmp_path):
    ours, theirs = Pipe()
    with closing(Store.open(tmp_path)) as store:
        url = store.url.render_as_string(hide_password=False)
        ours.send_bytes(exact_json.dumps([url, store.blobs.url]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "IDLE_SECONDS", 0.01)
            patch.setattr(module.gc, "freeze", lambda: None)
            patch.setattr(module.gc, "set_threshold", lambda *_: None)
            serving = Thread(target=module.serve, args=(theirs,))
            serving.start()
            serving.join(WAIT_SECONDS)
    assert not serving.is_alive()
