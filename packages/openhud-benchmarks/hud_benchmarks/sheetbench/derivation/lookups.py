"""Figures of rows that need other sheets: discounts by quantity, amounts in several currencies."""

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
from hud_benchmarks.sheetbench.words import PRODUCTS

_EUROS = {"USD": 0.92, "GBP": 1.17, "CHF": 1.04, "SEK": 0.087, "JPY": 0.0061, "CAD": 0.68}
"""Euros for one unit, about their mean of 2021 to 2025."""


def discounts(random: Random) -> Exercise:
    """Order lines with list prices and discounts by quantity."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    prices = {product: random.randint(500, 20_000) / 100 for product in random.sample(PRODUCTS, 10)}
    steps = [0, *sorted(random.sample(range(5, 100), 4))]
    rates = [0.0, *sorted(random.sample(range(2, 30), 4))]
    tiers = [[step, rate / 100] for step, rate in zip(steps, rates, strict=True)]
    lines: list[list[Value]] = [
        [number, random.choice(list(prices)), random.choice([*steps[1:], *[random.randint(1, 140)] * 4])]
        for number in sorted(random.sample(range(100, 999), 11))
    ]  # fmt: skip
    table = lay(book, random, "Lines", ["Line", "Article", "Quantity"], lines)
    listed = lay(book, random, "Prices", ["Article", "List price"], list(prices.items()))
    tier = lay(book, random, "Discounts", ["From quantity", "Discount"], tiers)
    answer_sheet(book, ["Line", "List price", "Discount", "Net"])
    formulas: dict[Cell, str] = {}
    for row, line in enumerate(lines):
        book[ANSWER].cell(row + 2, 1).value = line[0]
        article, quantity = table.reference(row, "Article"), table.reference(row, "Quantity")
        price = f"MATCH({article},{listed.column('Article')},0)"
        formulas[ANSWER, f"B{row + 2}"] = f"=INDEX({listed.column('List price')},{price})"
        step = f"MATCH({quantity},{tier.column('From quantity')},1)"
        formulas[ANSWER, f"C{row + 2}"] = f"=INDEX({tier.column('Discount')},{step})"
        formulas[ANSWER, f"D{row + 2}"] = f"={quantity}*B{row + 2}*(1-C{row + 2})"
    end = len(lines) + 2
    book[ANSWER].cell(end, 1).value = "Total"
    formulas[ANSWER, f"D{end}"] = f"=SUM(D2:D{end - 1})"

    def values() -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        total = 0.0
        for row, (_, article, quantity) in enumerate(lines, 2):
            price, count = prices[str(article)], int(str(quantity))
            rate = max(rate for step, rate in tiers if step <= count)
            net = count * price * (1 - rate)
            total += net
            cells = zip("BCD", (price, rate, net), strict=True)
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in cells}
        results[ANSWER, f"D{end}"] = total
        return results

    want_formulas(exercise, values(), formulas, row_of, tolerance=0.0051)
    for row in range(2, end):
        part = exercise.parts[f"row {row}"]
        rate = part[ANSWER, f"C{row}"]
        exercise.want(f"row {row}", ANSWER, f"C{row}", rate.value, rate.formula, 0.0005)
    changes: dict[Cell, float | str] = {}
    for row, article in enumerate(prices):
        prices[article] += row + 1
        changes[listed.cell(row, "List price")] = prices[article]
    for row, line in enumerate(lines):
        more = int(str(line[2])) + 9 + row
        line[2] = changes[table.cell(row, "Quantity")] = more
    for row, limits in enumerate(tiers):
        limits[0] += min(row, 1)
        limits[1] = round(limits[1] + 0.013, 3)
        changes[tier.cell(row, "From quantity")] = limits[0]
        changes[tier.cell(row, "Discount")] = limits[1]
    exercise.what_if(changes, values())
    exercise.request = (
        "Complete the sheet ANSWER with formulas, for each order line that it lists (they are in the order of the sheet Lines): the "
        "article's list price from the sheet Prices, the discount from the sheet Discounts (the one of the largest quantity that "
        "the line reaches), and the net amount; below, the total of the net amounts. Nothing is rounded. The formulas must follow "
        "when quantities, prices or discounts change."
    )
    return exercise


def currencies(random: Random) -> Exercise:
    """Expenses in several currencies, converted at the rate of their month."""
    exercise = Exercise(empty_workbook())
    book, year = exercise.workbook, random.randint(2021, 2025)
    names = random.sample(list(_EUROS), 4)
    rates = [
        [round(_EUROS[name] * random.uniform(0.96, 1.04), 6) for name in names] for _ in range(12)
    ]
    expenses: list[tuple[str, dt.date, str, float]] = []
    for number in sorted(random.sample(range(100, 999), 12)):
        currency, euros = random.choice([*names, "EUR"]), random.randint(500, 90_000) / 100
        date = dt.date(year, random.randint(1, 12), random.randint(1, 28))
        spent = round(euros / _EUROS.get(currency, 1.0), 0 if currency == "JPY" else 2)
        expenses.append((f"E{number}", date, currency, spent))
    table = lay(book, random, "Expenses", ["Expense", "Date", "Currency", "Amount"], expenses)
    monthly = [[month + 1, *row] for month, row in enumerate(rates)]
    rate = lay(book, random, "Rates", ["Month", *names], monthly, shuffled=False, title="EUR for one unit")  # fmt: skip
    answer_sheet(book, ["Expense", "Rate", "EUR"])
    first, last = rate.address(0, names[0]), rate.address(11, names[-1])
    rates_area = f"Rates!{_absolute(first)}:{_absolute(last)}"
    heads = f"Rates!{_absolute(rate.address(-1, names[0]))}:{_absolute(rate.address(-1, names[-1]))}"  # fmt: skip
    formulas: dict[Cell, str] = {}
    for row, expense in enumerate(expenses):
        book[ANSWER].cell(row + 2, 1).value = expense[0]
        day, name, amount = (table.reference(row, column) for column in ("Date", "Currency", "Amount"))  # fmt: skip
        lookup = f"INDEX({rates_area},MONTH({day}),MATCH({name},{heads},0))"
        formulas[ANSWER, f"B{row + 2}"] = f'=IF({name}="EUR",1,{lookup})'
        formulas[ANSWER, f"C{row + 2}"] = f"=ROUND({amount}*B{row + 2},2)"
    end = len(expenses) + 2
    book[ANSWER].cell(end, 1).value = "Total"
    formulas[ANSWER, f"C{end}"] = f"=SUM(C2:C{end - 1})"

    def values() -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        total = 0.0
        for row, (_, day, name, amount) in enumerate(expenses, 2):
            rate = 1.0 if name == "EUR" else rates[day.month - 1][names.index(name)]
            results[ANSWER, f"B{row}"], results[ANSWER, f"C{row}"] = (
                rate,
                round(amount * rate + 1e-9, 2),
            )
            total += round(amount * rate + 1e-9, 2)
        results[ANSWER, f"C{end}"] = total
        return results

    want_formulas(exercise, values(), formulas, row_of, tolerance=0.00051)
    for row in range(2, end):
        exact = exercise.parts[f"row {row}"][ANSWER, f"B{row}"]
        exercise.want(f"row {row}", ANSWER, f"B{row}", exact.value, exact.formula, 5.1e-7)
    changes: dict[Cell, float | str] = {}
    for month in range(12):
        for place, name in enumerate(names):
            rates[month][place] = round(rates[month][place] * (1 + 0.01 * (month + 1)), 6)
            changes[rate.cell(month, name)] = rates[month][place]
    for row, (key, date, currency, spent) in enumerate(expenses):
        moved = date.replace(month=(date.month + row % 3) % 12 + 1)
        expenses[row] = (key, moved, currency, spent + row + 1)
        changes[table.cell(row, "Date")] = float(to_excel(moved))
        changes[table.cell(row, "Amount")] = spent + row + 1
    exercise.what_if(changes, values())
    listed = [*names, "EUR"]
    for row, (key, date, currency, spent) in enumerate(expenses):
        other = listed[(listed.index(currency) + 1) % len(listed)]
        expenses[row] = (key, date, other, spent)
        changes[table.cell(row, "Currency")] = other
    exercise.what_if(changes, values())
    exercise.request = (
        "Complete the sheet ANSWER with formulas, for each expense that it lists (they are in the order of the sheet Expenses): the "
        "rate of its currency in the month of its date, from the sheet Rates, which has euros for one unit (1 for EUR), and the "
        "amount in euros, rounded to cents; below, the total. The formulas must follow when dates, currencies, amounts or rates change."
    )
    return exercise


def _absolute(cell: str) -> str:
    letters = cell.rstrip("0123456789")
    return f"${letters}${cell[len(letters) :]}"
