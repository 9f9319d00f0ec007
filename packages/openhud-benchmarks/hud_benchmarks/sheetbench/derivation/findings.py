"""Figures found in rows: questions about sales, and cohorts of customers."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from random import Random

from hud_benchmarks.sheetbench.grading.exercise import Exercise, Value
from hud_benchmarks.sheetbench.tables import ANSWER, answer_sheet, empty_workbook, lay
from hud_benchmarks.sheetbench.words import CITIES, COMPANIES, LAST_NAMES, MONTHS, PRODUCTS

_Sale = tuple[int, dt.date, str, str, str, int, float]


def questions(random: Random) -> Exercise:
    """Questions about sales, each with a name and a figure for an answer."""
    exercise = Exercise(empty_workbook())
    questions_and_answers: list[tuple[str, str, float]] = []
    sales: list[_Sale] = []
    while len(questions_and_answers) < 6:  # Drawn again where two answers would be right.
        sales = _sales(random)
        questions_and_answers = _asked(sales)
    book = exercise.workbook
    columns = ["Sale", "Date", "City", "Product", "Sold by", "Units", "Price"]
    lay(book, random, random.choice(["Sales", "Data", "Export"]), columns, sales)
    answer_sheet(book, ["No.", "Question", "Answer", "Figure"])
    random.shuffle(questions_and_answers)
    for row, (question, name, figure) in enumerate(questions_and_answers, 2):
        book[ANSWER].cell(row, 1).value = row - 1
        book[ANSWER].cell(row, 2).value = question
        exercise.want_rows(f"question {row - 1}", ANSWER, f"C{row}", [[name, figure]])
    exercise.request = (
        "Answer the questions in the sheet ANSWER from the sales: the name in the column Answer, the figure beside it. Revenue is "
        "units times price. Figures are exact to two decimals; months are Jan, Feb and so on."
    )
    return exercise


def _sales(random: Random) -> list[_Sale]:
    year = random.randint(2021, 2025)
    cities, products, sellers = (
        random.sample(names, size) for names, size in ((CITIES, 7), (PRODUCTS, 8), (LAST_NAMES, 6))
    )
    numbers = random.sample(range(10_000, 99_999), random.randint(80, 130))
    return [
        (
            number,
            dt.date(year, random.randint(1, 12), random.randint(1, 28)),
            random.choice(cities),
            random.choice(products),
            random.choice(sellers),
            random.randint(1, 90),
            random.randint(200, 9000) / 100,
        )
        for number in numbers
    ]


def _asked(sales: list[_Sale]) -> list[tuple[str, str, float]]:
    """Return questions with the answers; those are left out that have two."""
    revenue: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in ("city", "product", "seller", "month")}  # fmt: skip
    units: dict[str, float] = defaultdict(float)
    for _, day, city, product, seller, count, price in sales:
        for name, key in (("city", city), ("product", product), ("seller", seller), ("month", MONTHS[day.month - 1])):  # fmt: skip
            revenue[name][key].append(count * price)
        units[product] += count
    totals = {name: {key: sum(revenues) for key, revenues in by_key.items()} for name, by_key in revenue.items()}  # fmt: skip
    means = {key: sum(revenues) / len(revenues) for key, revenues in revenue["city"].items()}
    largest = {key: max(revenues) for key, revenues in revenue["seller"].items()}
    sizes = {key: float(len(revenues)) for key, revenues in revenue["seller"].items()}
    answers = [
        ("City with the highest revenue, and its revenue", _extreme(totals["city"])),
        ("Month with the lowest revenue, and its revenue", _extreme(totals["month"], least=True)),
        ("Product with the most units sold, and its units", _extreme(units)),
        ("City with the highest average revenue of a sale, and that average", _extreme(means)),
        ("Person with the largest single sale by revenue, and its revenue", _extreme(largest)),
        ("Person with the most sales, and how many", _extreme(sizes)),
    ]
    return [(question, *answer) for question, answer in answers if answer is not None]


def _extreme(figures: Mapping[str, float], *, least: bool = False) -> tuple[str, float] | None:
    ordered = sorted(figures.items(), key=lambda item: item[1], reverse=not least)
    if abs(ordered[0][1] - ordered[1][1]) < 0.5:
        return None
    return ordered[0][0], round(ordered[0][1], 2)


def cohorts(random: Random) -> Exercise:
    """Customers by the month of their first order, and how many of them ordered again."""
    exercise = Exercise(empty_workbook())
    book, year, span = exercise.workbook, random.randint(2021, 2025), 6
    start = random.randint(1, 12 - span + 1)
    months: dict[str, set[int]] = {}
    rows: list[list[Value]] = []
    for number in random.sample(range(100, 999), random.randint(40, 55)):
        customer, first = f"K{number}", random.randrange(span)
        later = [month for month in range(first + 1, span) if random.random() < 0.4]
        months[customer] = {first, *later}
        for month in [first, *later]:
            for _ in range(random.choice([1, 1, 2])):
                day = dt.date(year, start + month, random.randint(1, 28))
                rows.append([customer, random.choice(COMPANIES), day, random.randint(500, 90_000) / 100])  # fmt: skip
    random.shuffle(rows)
    lay(book, random, "Orders", ["Customer", "Supplier", "Date", "Total"], rows)
    answer_sheet(book, ["First month", "Customers", *(f"+{month}" for month in range(1, span))])
    for cohort in range(span):
        row = cohort + 2
        book[ANSWER].cell(row, 1).value = MONTHS[start + cohort - 1]
        members = [seen for seen in months.values() if min(seen) == cohort]
        figures: list[Value] = [len(members)]
        figures += [sum(cohort + later in seen for seen in members) if cohort + later < span else None for later in range(1, span)]  # fmt: skip
        exercise.want_rows(f"cohort {MONTHS[start + cohort - 1]}", ANSWER, f"B{row}", [figures])
    exercise.request = (
        f"Fill the cohort table in the sheet ANSWER from the orders of {year}: for each month the number of customers whose first "
        "order was in it, then how many of these ordered in the first month after it (+1), in the second (+2) and so on. Cells for "
        f"months after the last one of the data, {MONTHS[start + span - 2]}, stay empty; where nobody ordered, write 0."
    )
    return exercise
