"""Grades of workbooks: formulas that follow their inputs, damage, stray cells, and parts."""

from __future__ import annotations

import copy
import re

import pytest
from tests.benchmarks.sheetbench.offices import with_office

from hud.environment.current_run import entered
from hud_benchmarks.sheetbench.environment import env, workbook
from hud_benchmarks.sheetbench.grading.exercise import SCRATCH
from hud_benchmarks.sheetbench.grading.grade import damage, grade
from hud_benchmarks.sheetbench.kinds import KINDS, exercise
from hud_benchmarks.sheetbench.tables import ANSWER
from hud_benchmarks.sheetbench.workbook.cells import number

SEED = 1_000_000
WITH_FORMULAS = [
    kind
    for kind in KINDS
    if any(wanted.formula is not None for _, wanted in exercise(kind, SEED).wanted())
]


def solved(kind, content=lambda wanted: wanted.formula or wanted.value):
    """A workbook with the wanted cells written as `content` says, and its exercise."""
    asked = exercise(kind, SEED)
    left = exercise(kind, SEED).workbook
    for (sheet, cell), wanted in asked.wanted():
        left[sheet][cell].value = content(wanted)
    return asked, left


def constant(wanted):
    """The right value, as a formula that follows nothing."""
    value = number(wanted.value)
    text = isinstance(value, str)
    return (f'="{value}"' if text else f"={value!r}") if wanted.formula else wanted.value


@pytest.mark.slow
@with_office
def test_a_workbook_as_asked_for_earns_all_and_an_untouched_one_nothing():
    asked, left = solved("codes")
    assert grade(asked, left).reward == 1.0
    untouched = grade(asked, asked.workbook)
    assert untouched.reward == 0.0
    assert {part.value for part in untouched.subscores} == {0.0}


@pytest.mark.slow
@with_office
def test_values_earn_nothing_where_formulas_were_asked_for():
    asked, left = solved("codes", lambda wanted: wanted.value)
    assert grade(asked, left).reward == 0.0


@with_office
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "codes" else pytest.mark.slow) for kind in WITH_FORMULAS],
)  # fmt: skip
def test_formulas_that_do_not_follow_their_inputs_earn_nothing(kind):
    asked, left = solved(kind, constant)
    for part in grade(asked, left).subscores:
        cells = asked.parts.get(part.name, {}).values()
        assert part.value == float(all(wanted.formula is None for wanted in cells) and bool(cells))


@with_office
def test_a_wrong_cell_costs_its_part_alone():
    asked, left = solved("ledgers")
    left[ANSWER]["D2"].value += 0.02
    found = grade(asked, left)
    assert found.reward == pytest.approx(1 - 1 / len(asked.names()))
    assert "ANSWER!D2" in found.content
    left[ANSWER]["D2"].value -= 0.018
    assert grade(asked, left).reward == 1.0


@with_office
def test_numbers_as_texts_and_texts_in_other_letters_are_wrong():
    asked, left = solved("contacts")
    left[ANSWER]["A2"].value = str(left[ANSWER]["A2"].value)
    assert grade(asked, left).reward == 0.75
    asked, left = solved("contacts")
    left[ANSWER]["B2"].value = left[ANSWER]["B2"].value.upper()
    assert grade(asked, left).reward == 0.75


def stray(left):
    left[ANSWER]["Z99"].value = 1


def further_row(left):
    left[ANSWER].append(["R001", 1, 1, 0, "amount differs"])


def heading(left):
    left[ANSWER]["A1"].value = "Ref"


def source(left):
    cell = next(cell for row in left["Ledger"].iter_rows() for cell in row if isinstance(cell.value, float))  # fmt: skip
    cell.value += 1


def frozen(left):
    """Numbers of a source as they are shown, not as they are."""
    cell = next(cell for row in left["Ledger"].iter_rows() for cell in row if isinstance(cell.value, float))  # fmt: skip
    cell.number_format = "0"


def renamed(left):
    left["Bank"].title = "Statement"


def removed(left):
    left.remove(left["Bank"])


def hidden(left):
    left["Bank"].sheet_state = "hidden"


def protected(left):
    left["Bank"].protection.sheet = True


def merged(left):
    left["Bank"].merge_cells("H1:I2")


def added(left):
    left.create_sheet("Notes")


@pytest.mark.parametrize(
    "change",
    [stray, further_row, heading, source, frozen, renamed, removed, hidden, protected, merged, added],
)  # fmt: skip
def test_whatever_else_is_changed_costs_the_reward(change):
    asked, left = solved("ledgers")
    assert not damage(asked, left)
    change(left)
    found = grade(asked, left)
    assert (found.reward, found.info["damaged"] > 0) == (0.0, True)
    assert "not to be changed" in found.content


def test_ranges_of_charts_and_locks_of_cells_are_part_of_the_state():
    asked, left = solved("charts")
    left["Charts"]._charts[0].series[0].val.numRef.f = "Figures!$B$2:$B$3"
    assert not damage(asked, left)  # They were to be changed.
    left["Charts"]._charts.pop()
    left["Figures"]["A1"].value = "x"
    assert damage(asked, left) == [("Figures", "A1")]
    asked, left = solved("form")
    sheet = left.worksheets[0]
    unlocked = copy.copy(sheet["C7"].protection)
    unlocked.locked = False
    sheet["C7"].protection = unlocked
    assert damage(asked, left) == [(sheet.title, "C7", "locked")]


@with_office
def test_a_scratch_sheet_is_not_looked_at():
    asked, left = solved("ledgers")
    left.create_sheet(SCRATCH)["A1"].value = "=1+1"
    assert grade(asked, left).reward == 1.0


@pytest.mark.parametrize("kind", WITH_FORMULAS)
def test_every_part_has_values_that_follow_the_inputs(kind):
    """A constant in their place earns nothing, whatever the other parts are."""
    asked = exercise(kind, SEED)
    for name, cells in asked.parts.items():
        following = [
            not wanted.met(number(what_if.expected.get(cell, wanted.value)))
            for cell, wanted in cells.items()
            for what_if in asked.what_ifs
            if wanted.formula
        ]
        assert not following or any(following), name


def frozen(kind, sheet, columns):
    """A solved exercise whose formulas read some columns of a sheet from a copy of their own, which follows nothing."""
    asked, left = solved(kind)
    copied = left.create_sheet(SCRATCH)
    for cell in exercise(kind, SEED).workbook[sheet]._cells.values():
        copied.cell(cell.row, cell.column).value = cell.value
    for (place, cell), wanted in asked.wanted():
        if wanted.formula:
            reference = rf"'?{sheet}'?!(?=\$?[{columns}]\$?\d)"
            left[place][cell].value = re.sub(reference, f"{SCRATCH}!", wanted.formula)
    return asked, left


def letters_of(kind, sheet, heading):
    """The columns of a sheet below a heading."""
    cells = exercise(kind, SEED).workbook[sheet]._cells.values()
    return "".join(cell.column_letter for cell in cells if cell.value == heading)


INPUTS = [
    ("pivot", "Sales", "Date"),
    ("pivot", "Sales", "Region"),
    ("pivot", "Sales", "Revenue"),
    ("hours", "Times", "Start"),
    ("hours", "Times", "End"),
    ("codes", "Purchases", "Supplier"),
    ("codes", "Purchases", "Article"),
    ("codes", "Suppliers", "Code"),
    ("codes", "Suppliers", "Name"),
    ("codes", "Prices", "Article"),
    ("currencies", "Expenses", "Date"),
    ("currencies", "Expenses", "Currency"),
    ("currencies", "Expenses", "Amount"),
    ("scenarios", "Scenarios", "Price"),
    ("scenarios", "Scenarios", "Variable cost"),
    ("scenarios", "Scenarios", "Units"),
    ("investments", "Projects", 0),
]


@with_office
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sheet", "heading"), INPUTS)
def test_formulas_that_do_not_follow_one_of_their_inputs_earn_no_part(kind, sheet, heading):
    asked, left = frozen(kind, sheet, letters_of(kind, sheet, heading))
    parts = {part.name: part.value for part in grade(asked, left).subscores}
    reading = [
        name
        for name, cells in asked.parts.items()
        if any(sheet in (wanted.formula or "") for wanted in cells.values())
    ]
    assert reading
    assert [name for name in reading if parts[name]] == []


@pytest.mark.slow
@with_office
def test_a_schedule_with_its_number_of_months_written_into_it_earns_no_payments():
    asked, left = solved("amortization")
    for row in range(2, left[ANSWER].max_row):
        cell = left[ANSWER][f"B{row}"]
        cell.value = re.sub(r"/12,[^,]+,", f"/12,{left[ANSWER].max_row - 2},", cell.value)
    parts = {part.name: part.value for part in grade(asked, left).subscores}
    assert parts["column B"] == 0.0


@pytest.mark.slow
@with_office
def test_a_payback_that_takes_a_sum_of_zero_for_a_loss_earns_no_project():
    asked, left = solved(
        "investments", lambda wanted: (wanted.formula or wanted.value).replace("<0", "<=0")
    )
    done = {part.name for part in grade(asked, left).subscores if part.value}
    assert done == set(asked.names()[1::2]), "every other project pays back to the cent"


@pytest.mark.slow
@with_office
def test_a_pivot_without_its_year_earns_no_region():
    asked, left = solved("pivot")
    (year,) = {int(one) for one in re.findall(r"DATE\((\d{4})", str(left[ANSWER]["B2"].value))}
    sales = left["Sales"]
    date, region, revenue = (
        f"Sales!${letter}$1:${letter}${sales.max_row}"
        for letter in (letters_of("pivot", "Sales", name) for name in ("Date", "Region", "Revenue"))
    )
    for row in range(2, 7):
        for quarter, column in enumerate("BCDE", 1):
            of_quarter = f"(IFERROR(ROUNDUP(MONTH({date})/3,0),0)={quarter})"
            left[ANSWER][
                f"{column}{row}"
            ].value = f"=SUMPRODUCT(({region}=$A{row})*{of_quarter},{revenue})"
    result = grade(asked, left)
    assert year
    assert result.reward == 0.0, result


async def test_a_workbook_that_no_grader_can_read_is_worth_nothing():
    def ruin():
        workbook.book.workbook.worksheets[0]["A1"].value = 10**400

    async with env.run() as run:
        await run.start("book", {"kind": "codes", "seed": SEED})
        with entered(run):
            ruin()
        graded = await run.grade("", None)
    assert graded["score"] == 0.0
    assert "cannot be graded: OverflowError" in graded["content"]
