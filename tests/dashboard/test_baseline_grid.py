"""Spreadsheets of a human baseline: a grid of cells, and edits of it as tool calls."""

from __future__ import annotations

import pytest
from tests.benchmarks.sheetbench.offices import fifty, with_office
from tests.dashboard.test_baseline import begin, until

from hud.environment.tools.spreadsheet import column_letters
from hud.errors import UsageError
from hud_dashboard.human_baseline.benchmarks import offer
from hud_dashboard.human_baseline.grid import Grid, as_page, edits, shown, typed

SHEET = Grid(sheet="Data", sheets=["Data"], top=2, left=2, rows=[["a", 1], ["0123", None]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (True, "TRUE"), (12, "12"), (-0.5, "-0.5"), ("x y", "x y"), ("0123", "'0123"), ("true", "'true"),
        ("=A1*2", "=A1*2"), ("'2024-03-05", "'2024-03-05"), ("2024-03-05", "2024-03-05"), ("1_0", "1_0"), ("inf", "inf"),
    ],
)  # fmt: skip
def test_what_is_shown_is_typed_back(value, text):
    assert shown(value) == text
    assert typed(text) == (f"'{value}" if text == f"'{value}" else value)


def test_the_grid_begins_at_a1_and_has_room_around():
    page = as_page(SHEET)
    assert page["letters"][:4] == ["A", "B", "C", "D"]
    assert page["rows"][:3] == [[""] * 5, ["", "a", "1", "", ""], ["", "'0123", "", "", ""]]
    assert [column_letters(column) for column in (1, 26, 27, 702, 703)] == [
        "A",
        "Z",
        "AA",
        "ZZ",
        "AAA",
    ]


def test_changed_cells_are_written_as_rectangles_and_others_are_not():
    form = {f"cell.{row}.{column}": SHEET.text(row, column) for row in range(1, 12) for column in range(1, 6)}  # fmt: skip
    assert edits(SHEET, {"number": "0", **form}) == []
    form |= {"cell.2.2": "", "cell.5.1": "1", "cell.5.2": "x", "cell.6.1": "=A5", "cell.6.2": "'7"}
    assert edits(SHEET, {"number": "0", **form}) == [
        {"sheet": "Data", "start": "B2", "rows": [[None]]},
        {"sheet": "Data", "start": "A5", "rows": [[1, "x"], ["=A5", "'7"]]},
    ]
    with pytest.raises(UsageError, match="read again meanwhile"):
        edits(SHEET, {"number": "1", **form})


@pytest.mark.slow
@with_office
async def test_a_person_does_a_task_of_sheetbench_in_the_grid(web, platform, tmp_path):
    from hud_benchmarks.sheetbench.kinds import exercise
    from hud_benchmarks.sheetbench.workbook.cells import Area
    from hud_benchmarks.sheetbench.workbook.cells import shown as told

    tasks = fifty().tasks().filter(["survey-1000000"])
    place = await begin(web, offer(platform.store, tmp_path, tasks.name, tasks), "survey-1000000")
    opened = await until(web, place, "playing")
    assert opened["grid"]["sheets"] == ["Survey", "ANSWER"]
    page = (await web.get(place)).text
    assert 'name="cell.4.1"' in page
    await web.post(f"{place}/grid", data={"open": "ANSWER", "show": "formulas"})
    form = {}
    for (_, cell), wanted in exercise("survey", 1_000_000).wanted():
        area = Area.parsed(cell)
        form[f"cell.{area.top}.{area.left}"] = shown(told(wanted.value))
    shown_rows, moves = 9, 2
    while moves == 2 or shown_rows < max(int(name.split(".")[1]) for name in form) + 8:
        some = {name: text for name, text in form.items() if int(name.split(".")[1]) <= shown_rows}
        await web.post(f"{place}/grid", data={"number": str(moves), **some})
        after = (await web.get(f"{place}.json")).json()
        assert (after["said"], after["grid"]["sheet"]) == (None, "ANSWER")
        moves = after["grid"]["number"]
        shown_rows = len(after["grid"]["rows"])
    await web.post(f"{place}/grid", data={"number": str(moves), **form})
    assert (await web.get(f"{place}.json")).json()["said"] == "No cell was changed."
    await web.post(f"{place}/answer", data={"answer": "Done."})
    assert (await until(web, place, "over"))["reward"] == 1.0
