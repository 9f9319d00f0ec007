"""The journal gives back what was written to it, and nothing that was not."""

import subprocess
import sys
import textwrap
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.trace.recording.journal import (
    Event,
    Journal,
    decode_events,
    encode_event,
    orphaned_journals,
    set_aside,
)

lines = st.lists(
    st.tuples(
        st.sampled_from([b"J", b"R", b"S", b"T", b"E", b"Z"]),
        st.text("0123456789abcdef", min_size=1, max_size=32),
        st.integers(0, 10_000),
        st.binary().map(lambda raw: raw.replace(b"\n", b" ")),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(lines)
def test_events_come_back_in_order(events):
    data = b"".join(encode_event(*event) for event in events)
    assert list(decode_events(data)) == [Event(*event) for event in events]


@pytest.mark.slow
@given(lines.filter(bool), st.data())
def test_a_torn_end_loses_only_the_line_that_was_torn(events, data):
    whole = [encode_event(*event) for event in events]
    cut = data.draw(st.integers(0, len(whole[-1]) - 1))
    torn = b"".join(whole)[: len(b"".join(whole[:-1])) + cut]
    assert list(decode_events(torn)) == [Event(*event) for event in events[:-1]]


@pytest.mark.slow
@given(lines.filter(bool), st.data())
def test_a_changed_byte_damages_its_own_line_and_no_other(events, data):
    whole = [encode_event(*event) for event in events]
    hurt = data.draw(st.integers(0, len(whole) - 1))
    place = data.draw(st.integers(9, len(whole[hurt]) - 2))
    line = bytearray(whole[hurt])
    line[place] = line[place] ^ 1 if line[place] ^ 1 != ord("\n") else line[place] ^ 2
    whole[hurt] = bytes(line)
    expected = [Event(*event) for event in events]
    expected[hurt] = None
    assert list(decode_events(b"".join(whole))) == expected


def test_only_a_journal_without_its_writer_is_an_orphan(tmp_path):
    journal = Journal(tmp_path)
    journal.append(encode_event(b"S", "a", 1, b"{}"))
    assert list(orphaned_journals(tmp_path)) == []
    journal.abandon()
    assert list(orphaned_journals(tmp_path)) == [encode_event(b"S", "a", 1, b"{}")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_journal_of_a_dead_writer_is_waited_for_while_a_child_it_was_starting_holds_it(
    tmp_path,
):
    writer = """
        import subprocess, sys
        from pathlib import Path
        from hud.trace.recording.journal import Journal, encode_event
        journal = Journal(Path(sys.argv[1]))
        journal.append(encode_event(b"J", "job", 0, b"{}"))
        subprocess.Popen(["sleep", "0.5"], pass_fds=[journal._file])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(writer), str(tmp_path)], check=True)
    assert [data.count(b"\n") for data in orphaned_journals(tmp_path)] == [1]


def test_an_orphan_that_could_not_be_dealt_with_stays(tmp_path):
    journal = Journal(tmp_path)
    journal.append(encode_event(b"S", "a", 1, b"{}"))
    journal.abandon()

    def deal():
        for _ in orphaned_journals(tmp_path):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        deal()
    assert len(list(orphaned_journals(tmp_path))) == 1


def test_a_line_longer_than_a_batch_is_read_whole(tmp_path):
    journal = Journal(tmp_path)
    long, short = encode_event(b"S", "a", 1, b"x" * 5000), encode_event(b"S", "a", 2, b"{}")
    journal.append(long + short)
    assert journal.read(0, 16).startswith(long)
    assert journal.read(len(long), 16384) == short
    journal.clear()
    journal.close()


def test_damaged_lines_are_kept_and_said(tmp_path):
    end = encode_event(b"E", "6f1d", 0, b"{}")
    told = r"2 recorded events could not be stored \(a damaged line, the end of run 6f1d\).*damaged\.lines"
    with pytest.warns(UserWarning, match=told):
        set_aside(tmp_path, b"a\nb\n" + end, [0, 2])
    assert (tmp_path / "damaged.lines").read_bytes() == b"a\n" + end
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_aside(tmp_path, b"a\n", [])
