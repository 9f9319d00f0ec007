"""Figures summed up from rows by formulas: a pivot table, receivables by age, hours of a time sheet."""

from __future__ import annotations

import datetime as dt
from random import Random

from openpyxl.utils.datetime import to_excel

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.tables import (
    ANSWER,
    answer_sheet,
    empty_workbook,
    lay,
    row_of,
    want_formulas,
)
from hud_benchmarks.sheetbench.words import COMPANIES, FIRST_NAMES, PRODUCTS, REGIONS

_BUCKETS = ("Not due", "1 to 30", "31 to 60", "61 to 90", "Over 90")


def pivot(random: Random) -> Exercise:
    """Revenue by region and quarter."""
    exercise = Exercise(empty_workbook())
    book, year = exercise.workbook, random.randint(2021, 2025)
    regions = sorted(random.sample(REGIONS, 5))
    sales = [
        (
            dt.date(year, random.randint(1, 12), random.randint(1, 28)),
            random.choice(regions),
            random.choice(PRODUCTS),
            random.randint(1000, 90_000) / 100,
        )
        for _ in range(random.randint(70, 110))
    ]
    table = lay(book, random, "Sales", ["Date", "Region", "Product", "Revenue"], sales)
    answer_sheet(book, ["Region", "Q1", "Q2", "Q3", "Q4", "Year"])
    revenue, region, date = (table.column(name) for name in ("Revenue", "Region", "Date"))
    formulas: dict[Cell, str] = {}
    last = len(regions) + 2
    for row, name in enumerate([*regions, "Total"], 2):
        book[ANSWER].cell(row, 1).value = name
        for quarter, column in enumerate("BCDE"):
            start, end = (f"DATE({year},{quarter * 3 + month},1)" for month in (1, 4))
            if row < last:
                formulas[ANSWER, f"{column}{row}"] = (
                    f'=SUMIFS({revenue},{region},$A{row},{date},">="&{start},{date},"<"&{end})'
                )
            else:
                formulas[ANSWER, f"{column}{row}"] = f"=SUM({column}2:{column}{last - 1})"
        formulas[ANSWER, f"F{row}"] = f"=SUM(B{row}:E{row})"

    def values() -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        for row, name in enumerate([*regions, None], 2):
            sums = [0.0] * 4
            for day, of, _, amount in sales:
                if name in (of, None) and day.year == year:
                    sums[(day.month - 1) // 3] += amount
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in zip("BCDE", sums, strict=True)}  # fmt: skip
            results[ANSWER, f"F{row}"] = sum(sums)
        return results

    want_formulas(exercise, values(), formulas, row_of)
    changes: dict[Cell, float | str] = {}
    for row, (day, of, product, amount) in enumerate(sales):
        moved = day.replace(month=day.month % 12 + 1, day=1) if row % 5 == 0 else day
        # Out of the year, to its last day before and its first day after, and anywhere.
        moved = {1: dt.date(year - 1, 12, 31), 2: dt.date(year + 1, 1, 1)}.get(row % 12, moved)
        moved = moved.replace(year=year + 1) if row % 12 == 8 else moved
        other = regions[(regions.index(of) + 1) % len(regions)] if row % 7 == 0 else of
        sales[row] = (moved, other, product, amount + row)
        changes[table.cell(row, "Date")] = float(to_excel(moved))
        changes[table.cell(row, "Region")] = other
        changes[table.cell(row, "Revenue")] = amount + row
    exercise.what_if(changes, values())
    exercise.request = (
        f"Fill the sheet ANSWER with formulas: revenue of {year} by region and quarter, from the sheet Sales, with the year of each "
        "region in the last column and the totals in the last row. The formulas must follow when dates, regions or amounts change."
    )
    return exercise


def aging(random: Random) -> Exercise:
    """Open invoices by days overdue."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    today = dt.date(random.randint(2023, 2025), random.randint(2, 11), random.randint(1, 28))
    customers = sorted(random.sample(COMPANIES, 6))
    invoices = [
        (
            number,
            random.choice(customers),
            today - dt.timedelta(days=random.choice([0, 30, 60, 90, random.randint(-40, 150)])),
            random.randint(1000, 400_000) / 100,
        )
        for number in random.sample(range(7000, 7999), random.randint(40, 60))
    ]
    table = lay(book, random, "Receivables", ["Invoice", "Customer", "Due", "Open"], invoices)
    settings = book.create_sheet("Settings")
    place = random.choice(["B2", "C3", "B4"])
    settings[place].value, settings[f"A{place[1]}"].value = today, "Date of the report"
    answer_sheet(book, ["Customer", *_BUCKETS, "Total"])
    date = f"Settings!${place[0]}${place[1]}"
    due, customer, amount = (table.column(name) for name in ("Due", "Customer", "Open"))
    bounds = (
        f'">="&{date}',
        *(f'"<"&{date}-{low},{due},">="&{date}-{low + 30}' for low in (0, 30, 60)),
        f'"<"&{date}-90',
    )
    formulas: dict[Cell, str] = {}
    for row, name in enumerate(customers, 2):
        book[ANSWER].cell(row, 1).value = name
        for column, bound in zip("BCDEF", bounds, strict=True):
            formulas[ANSWER, f"{column}{row}"] = (
                f"=SUMIFS({amount},{customer},$A{row},{due},{bound})"
            )
        formulas[ANSWER, f"G{row}"] = f"=SUM(B{row}:F{row})"

    def values(today: dt.date) -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        for row, name in enumerate(customers, 2):
            sums = [0.0] * 5
            for _, of, day, open_amount in invoices:
                late = (today - day).days
                if of == name:
                    sums[0 if late <= 0 else min(4, (late + 29) // 30)] += open_amount
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in zip("BCDEF", sums, strict=True)}  # fmt: skip
            results[ANSWER, f"G{row}"] = sum(sums)
        return results

    want_formulas(exercise, values(today), formulas, row_of)
    changes: dict[Cell, float | str] = {}
    for row, (number, of, day, open_amount) in enumerate(invoices):
        invoices[row] = (number, of, day, open_amount + row + 1)
        changes[table.cell(row, "Open")] = open_amount + row + 1
    later = today + dt.timedelta(days=17)
    changes["Settings", place] = float(to_excel(later))
    exercise.what_if(changes, values(later))
    exercise.request = (
        "Fill the sheet ANSWER with formulas: the open amounts of each customer by days overdue at the date of the report, which is "
        "in the sheet Settings, and their total. An invoice is not due up to and including its due date; a day later it is 1 day "
        "overdue. The formulas must follow when amounts or the date of the report change."
    )
    return exercise


def hours(random: Random) -> Exercise:
    """Hours and overtime from a time sheet with night shifts."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    people = sorted(random.sample(FIRST_NAMES, 6))
    shifts: list[list[int | str]] = []
    for _ in range(random.randint(45, 65)):
        start = random.choice([6, 7, 8, 14, 22]) * 60 + random.choice([0, 15, 30, 45])
        length, pause = random.randint(20, 46) * 15, random.choice([0, 15, 30, 45])
        shifts.append([random.choice(people), random.randint(1, 28), start, start + length, pause])
    rows: list[list[Value]] = [
        [person, dt.date(2024, 5, int(day)), _fraction(start), _fraction(end), pause]
        for person, day, start, end, pause in shifts
    ]
    columns = ["Person", "Day", "Start", "End", "Break (min)"]
    table = lay(book, random, "Times", columns, rows)
    for row in range(len(rows)):
        for name in ("Start", "End"):
            book["Times"][table.address(row, name)].number_format = "hh:mm"
    answer_sheet(book, ["Person", "Shifts", "Hours", "Overtime"])
    person = table.column("Person")
    began, ended, paused = (table.column(name) for name in columns[2:])
    worked = f"(MOD({ended}-{began},1)*24-{paused}/60)"
    formulas: dict[Cell, str] = {}
    for row, name in enumerate(people, 2):
        book[ANSWER].cell(row, 1).value = name
        formulas[ANSWER, f"B{row}"] = f"=COUNTIF({person},A{row})"
        formulas[ANSWER, f"C{row}"] = f"=SUMPRODUCT(({person}=A{row})*{worked})"
        formulas[ANSWER, f"D{row}"] = f"=SUMPRODUCT(({person}=A{row})*({worked}>8)*({worked}-8))"

    def values() -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        for row, name in enumerate(people, 2):
            lengths = [
                (int(end) - int(start) - int(pause)) / 60
                for of, _, start, end, pause in shifts
                if of == name
            ]
            results[ANSWER, f"B{row}"] = len(lengths)
            results[ANSWER, f"C{row}"] = sum(lengths)
            results[ANSWER, f"D{row}"] = sum(max(0.0, length - 8) for length in lengths)
        return results

    want_formulas(exercise, values(), formulas, row_of)
    changes: dict[Cell, float | str] = {}
    for row, shift in enumerate(shifts):
        shift[0] = people[(people.index(str(shift[0])) + row % 2) % len(people)]
        shift[4] = int(shift[4]) + row % 4
        shift[2], shift[3] = int(shift[2]) + 15, int(shift[3]) + 45
        changes[table.cell(row, "Person")] = str(shift[0])
        changes[table.cell(row, "Start")] = _fraction(shift[2])
        changes[table.cell(row, "End")] = _fraction(shift[3])
        changes[table.cell(row, "Break (min)")] = float(shift[4])
    exercise.what_if(changes, values())
    exercise.request = (
        "Fill the sheet ANSWER with formulas from the time sheet Times: for each person the number of shifts, the hours worked, and "
        "the overtime, which is what a single shift has beyond 8 hours. An end that is earlier than the start is on the next day; "
        "breaks are in minutes and are not worked. Start and end are times, fractions of a day; the hours are numbers such as 7.5. "
        "The formulas must follow when the time sheet changes."
    )
    return exercise


def _fraction(minutes: int | str) -> float:
    return int(minutes) % 1440 / 1440
