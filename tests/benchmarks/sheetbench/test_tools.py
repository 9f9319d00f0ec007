"""The tools of a spreadsheet: results, refusals, and the LibreOffice that calculates."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import openpyxl
import pytest
from tests.benchmarks.sheetbench.offices import with_office

from hud.errors import UsageError
from hud_benchmarks.sheetbench.calculation import Office, office
from hud_benchmarks.sheetbench.calculation.office import CalculationError
from hud_benchmarks.sheetbench.tools import tools
from hud_benchmarks.sheetbench.workbook.book import Book, saved
from hud_benchmarks.sheetbench.workbook.state import state


class Run:
    """A workbook with one sheet, `Data`, and the tools over it."""

    def __init__(self):
        workbook = openpyxl.Workbook()
        sheet = workbook.active
        sheet.title = "Data"
        for row in (["Item", "Day", "Units"], ["'x", dt.date(2024, 3, 5), 2], ["y", None, 0.1 + 0.2]):  # fmt: skip
            sheet.append(row)
        self.book = Book(workbook)
        self.tools = {function.__name__: function for function in tools(self)}

    def __getattr__(self, name):
        return self.tools[name]

    def rows(self, sheet="Data", cells="", **options):
        """The rows that `read_range` shows."""
        text = self.read_range(sheet=sheet, range=cells, **options).text
        return [json.loads(line.partition(": ")[2]) for line in text.splitlines()[1:]]


@pytest.fixture
def run():
    return Run()


def test_cells_are_read_as_they_are_written(run):
    written = [["'2024-03-05", "2024-03-05", "12:30:00", "'=x", "''y", 0.5, True, None, " z "]]
    run.write_cells(sheet="Data", start="A5", rows=written)
    assert run.rows(cells="A5:I5") == written
    assert run.rows(cells="A2:C3") == [["''x", "2024-03-05", 2], ["y", None, 0.3]]
    run.clear_range(sheet="Data", range="A5:I5")
    assert run.rows(cells="A5:I5") == [[None] * 9]
    assert not any(place[:2] == ("Data", "A5") and len(place) == 2 for place in state(run.book.workbook))  # fmt: skip


@pytest.mark.slow
@with_office
def test_formulas_are_calculated_when_they_are_written(run):
    told = run.write_cells(sheet="Data", start="D2", rows=[["=C2*2", "=1/0", "=B2+1"]])
    assert '"D2": 4' in told
    assert "1 are errors" in told
    assert '"E2": "#DIV/0!"' in told
    assert run.rows(cells="D2:D2") == [[4]]
    assert run.rows(cells="D2:D2", show="formulas") == [["=C2*2"]]
    assert '"D3": 0.6' in run.copy_range(sheet="Data", range="D2", to="D3")
    assert '"G2": "few"' in run.write_cells(sheet="Data", start="G2", rows=[['=IFS(C2>5,"many",TRUE,"few")']])  # fmt: skip


@with_office
def test_a_sheet_is_renamed_with_the_references_to_it(run):
    run.add_sheet(name="Sums")
    run.write_cells(sheet="Sums", start="A1", rows=[['=SUM(Data!C2:C3)&" Data!"', "=Units*10"]])
    run.define_name(name="Units", sheet="Data", range="C2")
    run.rename_sheet(name="Data", new_name="My data")
    assert run.rows("Sums", show="formulas")[0][0] == "=SUM('My data'!C2:C3)&\" Data!\""
    assert run.rows("Sums") == [["2.3 Data!", 20]]
    run.delete_sheet(name="My data")
    assert run.rows("Sums")[0][1] in ("#REF!", "#NAME?")


def test_find_shows_where_a_text_is(run):
    assert run.find(text="UNI") == 'Data!C1: "Units"'
    assert run.find(text="nowhere") == "No cell contains 'nowhere'."


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("read_range", {"sheet": "Dta"}, "There is no sheet 'Dta'; there are 'Data'."),
        ("read_range", {"sheet": "Data", "range": "2B"}, "'2B' is no cell and no range"),
        ("read_range", {"sheet": "Data", "range": "A1:ZZ999"}, "read at most 4,000 at once"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": []}, "There is nothing to write"),
        ("write_cells", {"sheet": "Data", "start": "XFD1", "rows": [[1, 2]]}, "beyond the last cell|is no cell"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": [["=SUM(A1"]]}, "parentheses"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": [['=WEBSERVICE("http://h/")']]}, "WEBSERVICE reaches out"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": [["='file:///etc/passwd'#$S.A1"]]}, "no formula|no range"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": [["=[2]S!A1"]]}, "is no range of this workbook"),
        ("write_cells", {"sheet": "Data", "start": "A1", "rows": [["=XLOOKUP(1,A:A,B:B)"]]}, "There is no XLOOKUP here"),
        ("add_sheet", {"name": "data"}, "There is a sheet 'data' already."),
        ("add_sheet", {"name": "a/b"}, "is no name of a sheet"),
        ("delete_sheet", {"name": "Data"}, "keeps at least one sheet"),
        ("define_name", {"name": "2x", "sheet": "Data", "range": "A1"}, "'2x' is no name"),
        ("format_cells", {"sheet": "Data", "range": "A1", "fill": "green"}, "'green' is no colour"),
        ("set_chart_series", {"sheet": "Data", "chart": 1, "series": 1, "values": "A1"}, "no chart 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_a_sentence_and_changes_nothing(
    run, tool, arguments, told
):
    before = state(run.book.workbook)
    with pytest.raises(UsageError) as error:
        run.tools[tool](**arguments)
    assert re.search(told, str(error.value)), str(error.value)
    assert state(run.book.workbook) == before


def test_locked_cells_of_a_protected_sheet_are_not_written(run):
    run.format_cells(sheet="Data", range="C2", locked=False)
    run.protect_sheet(sheet="Data")
    run.write_cells(sheet="Data", start="C2", rows=[[5]])
    with pytest.raises(UsageError, match="A2 is locked"):
        run.write_cells(sheet="Data", start="A2", rows=[["z"]])
    run.protect_sheet(sheet="Data", on=False)
    run.write_cells(sheet="Data", start="A2", rows=[["z"]])
    assert run.rows(cells="A2:C2") == [["z", "2024-03-05", 5]]


@pytest.mark.slow
def test_calls_that_are_made_at_once_act_one_after_the_other(run):
    def act(number):
        run.write_cells(sheet="Data", start=f"A{10 + number}", rows=[[number, "x"]])
        return run.find(text="x")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(200)))
    assert run.rows(cells="A10:A209") == [[number] for number in range(200)]


@with_office
def test_changes_are_made_to_the_workbook_as_it_is_each_time(run):
    run.write_cells(sheet="Data", start="E1", rows=[["=C2*10", "=A2"]])
    found = office().recalculate(saved(run.book.workbook), [{}, {"Data!C2": 7, "Data!A2": "w"}, {}])
    assert [values["Data"][0][4:6] for values in found] == [[20, "'x"], [70, "w"], [20, "'x"]]


@with_office
@pytest.mark.slow
def test_a_calculation_without_an_end_is_ended_and_the_next_one_works(run):
    calculator = Office(seconds=5.0)
    try:
        slow = Run()
        area = "SUMPRODUCT((A1:A1000000<>D1:D1000000)*(B1:B1000000<>C1:C1000000))"
        slow.book.sheet("Data")["E1"].value = "=" + "+".join([area] * 40)
        with pytest.raises(CalculationError, match="within 5 s"):
            calculator.recalculate(saved(slow.book.workbook))
        assert calculator.recalculate(saved(run.book.workbook))[0]["Data"][0][0] == "Item"
        killed = threading.Timer(2.0, calculator._process.kill)
        killed.start()
        with pytest.raises(CalculationError, match="within 5 s"):  # Begun again, and no faster.
            calculator.recalculate(saved(slow.book.workbook))
        with pytest.raises(CalculationError, match="cannot be calculated"):
            calculator.recalculate(b"PK no workbook")
    finally:
        calculator.close()


@with_office
@pytest.mark.slow
def test_an_idle_office_ends_and_the_next_calculation_starts_another(run):
    calculator = Office(idle_seconds=0.5)
    try:
        for _ in range(2):
            assert calculator.recalculate(saved(run.book.workbook))[0]["Data"][0][0] == "Item"
            process = calculator._process
            assert process is not None
            process.wait(30)
    finally:
        calculator.close()


@pytest.mark.slow
@with_office
def test_an_office_whose_temporary_folder_was_deleted_is_started_again(run):
    calculator, content = Office(), saved(run.book.workbook)
    try:
        calculator.recalculate(content)
        shutil.rmtree(calculator._folder.path)
        assert calculator.recalculate(content)[0]["Data"][1][2] == 2
    finally:
        calculator.close()


FAR = "XFD1048576"
FAR_OUT = [
    ("write_cells", {"start": FAR, "rows": [[1]]}),
    ("write_cells", {"start": "A1048576", "rows": [["=1"]]}),
    ("write_cells", {"start": "XFD50", "rows": [[None]]}),
    ("copy_range", {"range": "A1", "to": FAR}),
    ("copy_range", {"range": FAR, "to": "A9"}),
    ("clear_range", {"range": FAR}),
    ("format_cells", {"range": FAR, "bold": True}),
    ("format_cells", {"range": "A1040000:A1048576", "locked": False}),
]


@pytest.mark.parametrize(("tool", "arguments"), FAR_OUT)
def test_a_cell_far_out_is_refused(run, tool, arguments):
    """Calculations and grades read all cells between: one took 1.5 GB, and did not end."""
    before = state(run.book.workbook)
    with pytest.raises(UsageError, match="too far out: sheets may be used up to 200,000 cells"):
        getattr(run, tool)(sheet="Data", **arguments)
    assert state(run.book.workbook) == before
    assert run.book.workbook["Data"].calculate_dimension() == "A1:C3"


def test_sheets_share_the_room_and_reading_takes_none(run):
    assert run.rows(cells=f"{FAR}:{FAR}") == [[None]]
    assert run.book.workbook["Data"].calculate_dimension() == "A1:C3"
    run.write_cells(sheet="Data", start="A60000", rows=[[1]])
    run.add_sheet(name="More")
    with pytest.raises(UsageError, match="too far out"):
        run.write_cells(sheet="More", start="A60000", rows=[[1]])


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e308, float("inf"), float("nan")])
def test_a_number_that_no_spreadsheet_holds_is_refused(run, number):
    with pytest.raises(UsageError, match="A cell holds numbers up to"):
        run.write_cells(sheet="Data", start="A9", rows=[[number]])
    run.write_cells(sheet="Data", start="A9", rows=[[9.9e307]])


def test_formulas_of_any_length_take_no_time(run):
    """One copy of a long formula kept every run of the process waiting for minutes."""
    with pytest.raises(UsageError, match="A formula has at most 8,192 characters"):
        run.write_cells(sheet="Data", start="A9", rows=[["=" + "+".join(["B1"] * 3_000)]])
    with pytest.raises(UsageError, match="formulas of at most 1,000,000 characters"):
        run.write_cells(sheet="Data", start="A9", rows=[["=" + "+".join(["B1"] * 2_000)]] * 200)
    run.book.workbook["Data"]["A9"].value = "=" + "+".join(["B1"] * 2_000)
    before = state(run.book.workbook)
    with pytest.raises(UsageError, match="formulas of at most 1,000,000 characters"):
        run.copy_range(sheet="Data", range="A9", to="A10:A209")
    assert state(run.book.workbook) == before
    assert run.book.workbook["Data"].calculate_dimension() == "A1:C9"


def test_a_workbook_has_a_size(run):
    run.write_cells(sheet="Data", start="A9", rows=[["x" * 30_000]])
    with pytest.raises(UsageError, match="at most 20,000,000 characters"):
        run.copy_range(sheet="Data", range="A9", to="A10:A1009")
    run.copy_range(sheet="Data", range="A9", to="A10:A609")
    with pytest.raises(UsageError, match="at most 20,000,000 characters"):
        run.write_cells(sheet="Data", start="B9", rows=[["y" * 30_000]] * 80)


@pytest.mark.slow
@with_office
def test_values_without_end_are_an_error_of_the_workbook(run):
    sheet, small = run.book.workbook["Data"], Office(answer_bytes=1 << 20)
    for row in range(9, 59):
        sheet[f"A{row}"].value = '=REPT("x",32000)'
    with pytest.raises(CalculationError, match="more than 1 MB"):
        small.recalculate(saved(run.book.workbook))
    sheet.delete_rows(9, 50)
    assert small.recalculate(saved(run.book.workbook))[0]["Data"][1][2] == 2
    small.close()
