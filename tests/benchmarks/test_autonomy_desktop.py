"""The desktop categories of `autonomy-10`: a text editor and a spreadsheet, graded on the file that is saved."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import zipfile

import pytest
from tests.benchmarks.played import NOTHING, rewards

from hud.benchmarks import benchmark
from hud_benchmarks.autonomy.applications.editor.document import grade_lines
from hud_benchmarks.autonomy.applications.editor.tasks import KINDS as EDITS
from hud_benchmarks.autonomy.applications.editor.tasks import edit
from hud_benchmarks.autonomy.applications.spreadsheet.tasks import KINDS as WORKS
from hud_benchmarks.autonomy.applications.spreadsheet.tasks import work
from hud_benchmarks.autonomy.applications.spreadsheet.values import UnreadableError, state
from hud_benchmarks.autonomy.applications.spreadsheet.work import blocks
from hud_benchmarks.autonomy.applications.spreadsheet.workbook import (
    copied,
    file_of,
    is_formula,
    table,
    with_inputs,
)
from hud_benchmarks.autonomy.grading import grade_state

SEED = 1_000_000
with_a_converter = pytest.mark.skipif(
    shutil.which("ssconvert") is None, reason="needs gnumeric (scripts/setup-worlds)"
)
_DESKTOP = ("Xvfb", "x11vnc", "openbox", "bwrap")


def on_a_desktop_with(program):
    return pytest.mark.skipif(
        any(shutil.which(name) is None for name in (*_DESKTOP, program)),
        reason=f"needs a desktop and {program} (scripts/setup-worlds)",
    )


async def check_script(slug):
    autonomy = benchmark("autonomy-10")
    tasks = autonomy.tasks().filter([slug])
    assert await rewards(tasks, autonomy.oracle()) == {slug: 1.0}
    assert await rewards(tasks, NOTHING) == {slug: 0.0}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_is_drawn_from_its_seed_and_graded_by_its_lines(kind):
    asked, again, other = edit(kind, SEED), edit(kind, SEED), edit(kind, SEED + 1)
    assert asked == again
    assert asked.before != other.before
    for left, reward in ((asked.before, 0.0), (asked.wanted, 1.0), (asked.wanted.rstrip(), 1.0)):
        assert grade_lines(asked.before, asked.wanted, left).reward == reward
    for left in ("", asked.wanted + "More.\n", asked.wanted.replace("e", "E")):
        assert grade_lines(asked.before, asked.wanted, left).reward == 0.0


def test_a_text_of_great_size_is_worth_nothing():
    assert grade_lines("a\n", "a\nb\n", "a\nb\n" + "\n" * (2 << 20)).reward == 0.0


def test_lines_in_another_order_are_not_all_that_was_asked_for():
    graded = grade_lines("a\nb\nc\n", "c\nd\na\n", "a\nc\nd\n")
    assert graded.reward == 2 / 3


@on_a_desktop_with("mousepad")
@pytest.mark.slow
async def test_a_script_edits_a_document_in_mousepad():
    await check_script(f"editor-prices-{SEED}")


def state_of(book, asked, folder):
    """The state of a workbook, as the environment computes it."""
    files = []
    for inputs in ({}, asked.other_inputs()):
        (folder / "book.gnumeric").write_bytes(with_inputs(file_of(book), inputs))
        subprocess.run(
            ["ssconvert", "--recalc", "book.gnumeric", "book.xlsx"], cwd=folder, check=True, capture_output=True
        )  # fmt: skip
        files.append((folder / "book.xlsx").read_bytes())
    return state(files, asked.changes())


def computed(book, values):
    """The workbook with values in place of formulas."""
    constant = copied(book)
    for name, sheet in constant.items():
        for row, contents in enumerate(sheet, 1):
            for column, content in enumerate(contents):
                if is_formula(content):
                    contents[column] = values[f"{name}!{'ABCDEFGHIJ'[column]}{row}"][0]
    return constant


@pytest.mark.slow
@with_a_converter
@pytest.mark.parametrize("kind", WORKS)
def test_a_work_is_drawn_from_its_seed_and_graded_by_its_values(kind, tmp_path):
    asked, again, other = work(kind, SEED), work(kind, SEED), work(kind, SEED + 1)
    assert asked == again
    assert asked.before != other.before
    before, wanted = (state_of(book, asked, tmp_path) for book in (asked.before, asked.wanted))
    assert not [one for one in wanted.values() if str(one[0]).startswith("#")]
    damaged = copied(asked.wanted)
    next(iter(damaged.values()))[0][0] = "changed"
    for book, reward in ((asked.before, 0.0), (asked.wanted, 1.0), (damaged, 0.0)):
        assert grade_state(before, wanted, state_of(book, asked, tmp_path)).reward == reward


@pytest.mark.slow
@with_a_converter
@pytest.mark.parametrize("kind", ["invoice", "grades"])
def test_numbers_in_place_of_formulas_are_not_what_was_asked_for(kind, tmp_path):
    asked = work(kind, SEED)
    before, wanted = (state_of(book, asked, tmp_path) for book in (asked.before, asked.wanted))
    constant = computed(asked.wanted, wanted)
    assert grade_state(before, wanted, state_of(constant, asked, tmp_path)).reward == 0.0


@pytest.mark.slow
@with_a_converter
def test_a_part_of_a_work_earns_its_share_and_a_sheet_more_earns_nothing(tmp_path):
    asked = work("ledger", SEED)
    before, wanted = (state_of(book, asked, tmp_path) for book in (asked.before, asked.wanted))
    partly = copied(asked.before)
    partly["Ledger"] += asked.wanted["Ledger"][len(partly["Ledger"]) :]
    share = grade_state(before, wanted, state_of(partly, asked, tmp_path)).reward
    assert share == pytest.approx(8 / len(asked.changes()))
    more = {**asked.wanted, "Notes": table(["mine"])}
    assert grade_state(before, wanted, state_of(more, asked, tmp_path)).reward == 0.0


def test_cells_that_differ_are_written_as_rectangles():
    before = {"A": table([1, 2, 3], [4, 5, 6])}
    wanted = {"A": table([1, 8, 9], [4, 7, None], [5, 6, None])}
    assert {one.place: one.rows for one in blocks(before, wanted)} == {
        "A!B1": [[8, 9]], "A!B2": [[7]], "A!C2": [[None]], "A!A3": [[5, 6]],
    }  # fmt: skip


@on_a_desktop_with("gnumeric")
@pytest.mark.slow
async def test_a_script_completes_a_workbook_in_gnumeric():
    await check_script(f"spreadsheet-invoice-{SEED}")


PACKED = gzip.compress(b"<a/>" * 100)
DAMAGED = {
    "text": b"a;b;c",
    "cut": PACKED[:20],
    "damaged": PACKED[:15] + bytes(10) + PACKED[25:],
    "endless": gzip.compress(bytes(1 << 25)),
    "a cell beyond the last": b'<a xmlns:g="http://www.gnumeric.org/v10.dtd"><g:Sheet><g:Cell Row="1" Col="99999999999"/></g:Sheet></a>',
    "a number of 5000 digits": b'<a xmlns:g="http://www.gnumeric.org/v10.dtd"><g:Sheet><g:Cell Row="%s"/></g:Sheet></a>'
    % (b"9" * 5000),
    "an unknown encoding": b'<?xml version="1.0" encoding="klingon"?><a/>',
    "an encoding of bytes": b'<?xml version="1.0" encoding="rot13"?><a/>',
    "elements of great depth": b"<a>" * 3000 + b"</a>" * 3000,
}


@pytest.mark.parametrize("file", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_workbook_is_told_from_a_failure_of_the_grader(file):
    with pytest.raises(UnreadableError):
        with_inputs(file, {})
    with pytest.raises(UnreadableError):
        state([file], {})


ENTITIES = '<?xml version="1.0" encoding="{}"?><!DOCTYPE w [<!ENTITY e "{}">]><w>{}</w>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp037"])
def test_a_workbook_whose_entities_grow_is_none(encoding):
    text = ENTITIES.format(encoding, "x" * 100_000, "&e;" * 100)
    head, end, rest = text.partition("?>")
    data = text.encode(encoding)
    if encoding == "cp037":  # The declaration alone is read before the encoding is known.
        data = (head + end).encode() + rest.encode(encoding)
    for file in (data, gzip.compress(data)):
        with pytest.raises(ValueError, match=r"document type|no XML"):
            with_inputs(file, {})


@pytest.mark.slow
def test_values_of_great_size_are_no_workbook():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", b"<w>" + bytes(40 << 20).replace(b"\0", b" ") + b"</w>")
    assert len(file.getvalue()) < 1 << 20
    with pytest.raises(ValueError, match="more than 32 MiB"):
        state([file.getvalue()], {})
