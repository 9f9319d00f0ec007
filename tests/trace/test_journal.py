"""What is in the journal is on disk, whole lines of it, whatever happens to its writer."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import StoreError
from hud.trace.columns import added_prompt, pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from hud.trace.journal import Journal, decode_events, encode_event, orphaned_journals

EVENT = encode_event(b"S", "a" * 32, 3, b'{"text":"tab \\t and newline \\n"}')


def test_events_come_back_as_they_went():
    assert (
        list(decode_events(EVENT * 2))
        == [(b"S", "a" * 32, 3, b'{"text":"tab \\t and newline \\n"}')] * 2
    )


def test_the_torn_end_of_a_dead_writer_is_dropped():
    assert len(list(decode_events(EVENT + EVENT[:-5]))) == 1


def test_a_batch_ends_with_a_whole_line(tmp_path):
    journal = Journal(tmp_path)
    journal.append(EVENT * 10)
    batch = journal.read(0, len(EVENT) * 3 + 7)
    assert batch == EVENT * 3
    assert journal.read(0, 5) == EVENT  # A line longer than a batch is a batch.
    journal.close()


def test_an_emptied_journal_leaves_no_file(tmp_path):
    journal = Journal(tmp_path)
    journal.append(EVENT)
    journal.clear()
    journal.close()
    assert list((tmp_path / "journal").iterdir()) == []


def test_a_living_writers_journal_is_left_alone_and_a_dead_ones_is_taken_over(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from hud.trace.journal import Journal\n"
        f"journal = Journal(Path({str(tmp_path)!r})); journal.append({EVENT!r}); print('ready', flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"ready\n"
    assert list(orphaned_journals(tmp_path)) == []
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert [data for _, data in orphaned_journals(tmp_path)] == [EVENT]
    assert list(orphaned_journals(tmp_path)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_told_in_a_sentence_and_keeps_what_was_there(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this sandbox mounts nothing")
    try:
        journal = Journal(tmp_path)
        journal.append(EVENT)
        with pytest.raises(
            StoreError, match="No space left on device.*What was recorded before is kept"
        ):
            journal.append(EVENT * 5000)
        assert journal.read(0, 1 << 20) == EVENT
        journal.append(EVENT)
        assert journal.read(0, 1 << 20) == EVENT * 2
        journal.clear()
        journal.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_survive_their_column(ids):
    assert unpack_ids(pack_ids(ids)) == ids


@given(st.lists(st.floats(-1e4, 0, width=32)))
def test_logprobs_survive_their_column(logprobs):
    assert unpack_logprobs(pack_logprobs(logprobs)) == logprobs


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_a_prompt_is_what_came_before_and_what_it_adds(before, more):
    assert added_prompt(before, before + more) == more
    assert added_prompt(None, more) is None
    if before and before[0] != 10:
        assert added_prompt([10, *before], before + more) is None
