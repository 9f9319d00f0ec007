"""Formulas of tables that are being prepared: look-ups of codes, and errors to be found and repaired."""

from __future__ import annotations

from random import Random
from typing import Any

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.tables import (
    ANSWER,
    answer_sheet,
    empty_workbook,
    lay,
    row_of,
    want_formulas,
)
from hud_benchmarks.sheetbench.words import CITIES, COMPANIES, PRODUCTS
from hud_benchmarks.sheetbench.workbook.cells import address

UNKNOWN = "unknown"
_LOOKED_UP = ("Supplier", "Article", "Quantity")


def _next(choices: list[Any], chosen: Any) -> Any:
    """Return the choice after the chosen one; the first one after the last, or for one that is no choice."""
    return choices[(choices.index(chosen) + 1) % len(choices)] if chosen in choices else choices[0]


def _moved_on(table: dict[Any, Any]) -> dict[Any, Any]:
    """Return a table in which each key has the value of the next one."""
    values = list(table.values())
    return dict(zip(table, [*values[1:], values[0]], strict=True))


def codes(random: Random) -> Exercise:
    """Suppliers and prices looked up on other sheets."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    suppliers = dict(zip(random.sample(range(10, 99), 12), random.sample(COMPANIES, 12), strict=True))  # fmt: skip
    prices = {product: random.randint(200, 9000) / 100 for product in random.sample(PRODUCTS, 12)}
    missing = random.choice([number for number in range(10, 99) if number not in suppliers])
    orders: list[list[Value]] = [
        [number, random.choice([*suppliers, missing]), random.choice(list(prices)), random.randint(1, 60)]
        for number in sorted(random.sample(range(500, 999), 10))
    ]  # fmt: skip
    table = lay(book, random, "Purchases", ["Purchase", "Supplier", "Article", "Quantity"], orders)
    codes = lay(book, random, "Suppliers", ["Code", "Name", "City"], [[code, name, random.choice(CITIES)] for code, name in suppliers.items()])  # fmt: skip
    listed = lay(book, random, "Prices", ["Article", "Price"], [list(item) for item in prices.items()])  # fmt: skip
    answer_sheet(book, ["Purchase", "Supplier", "Price", "Amount"])
    formulas: dict[Cell, str] = {}
    for row, order in enumerate(orders):
        book[ANSWER].cell(row + 2, 1).value = order[0]
        code, article, quantity = (table.reference(row, name) for name in _LOOKED_UP)
        lookup = f"INDEX({codes.column('Name')},MATCH({code},{codes.column('Code')},0))"
        formulas[ANSWER, f"B{row + 2}"] = f'=IFERROR({lookup},"{UNKNOWN}")'
        price = f"INDEX({listed.column('Price')},MATCH({article},{listed.column('Article')},0))"
        formulas[ANSWER, f"C{row + 2}"] = f"={price}"
        formulas[ANSWER, f"D{row + 2}"] = f"=C{row + 2}*{quantity}"

    def values() -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        for row, (_, code, article, quantity) in enumerate(orders, 2):
            assert isinstance(quantity, int)
            results[ANSWER, f"B{row}"] = suppliers.get(int(str(code)), UNKNOWN)
            results[ANSWER, f"C{row}"] = prices[str(article)]
            results[ANSWER, f"D{row}"] = prices[str(article)] * quantity
        return results

    want_formulas(exercise, values(), formulas, row_of)
    changes: dict[Cell, float | str] = {}
    for row, priced in enumerate(prices):
        prices[priced] += row + 1
        changes[listed.cell(row, "Price")] = prices[priced]
    for row, supplier_code in enumerate(suppliers):
        suppliers[supplier_code] = f"{suppliers[supplier_code]} Ltd"
        changes[codes.cell(row, "Name")] = suppliers[supplier_code]
    for row, order in enumerate(orders):
        more = int(str(order[3])) + row % 3 + 1
        order[3] = changes[table.cell(row, "Quantity")] = more
    exercise.what_if(changes, values())
    # Every purchase has another supplier and another article; the first one's supplier is not listed.
    for row, order in enumerate(orders):
        supplier = missing if row == 0 else _next(list(suppliers), order[1])
        article = _next(list(prices), order[2])
        order[1], order[2] = supplier, article
        changes |= {table.cell(row, "Supplier"): float(supplier), table.cell(row, "Article"): article}  # fmt: skip
    exercise.what_if(changes, values())
    # Codes, and articles, move on by one row in their lists.
    for row, (supplier, article) in enumerate(zip(list(suppliers), list(prices), strict=True)):
        changes |= {codes.cell((row + 1) % len(suppliers), "Code"): float(supplier)}
        changes |= {listed.cell((row + 1) % len(prices), "Article"): article}
    orders[0][1] = next(iter(suppliers))
    changes[table.cell(0, "Supplier")] = float(next(iter(suppliers)))
    suppliers = _moved_on(suppliers)
    prices = _moved_on(prices)
    exercise.what_if(changes, values())
    exercise.request = (
        "Complete the sheet ANSWER with formulas, for each purchase that it lists: the supplier's name, looked up by its code in "
        f"the sheet Suppliers (`{UNKNOWN}` where the code is not listed), the article's price from the sheet Prices, and the amount, "
        "price times quantity. Supplier, article and quantity of a purchase are in the sheet Purchases, whose rows are in the same "
        "order. The formulas must follow when codes, names, prices or quantities change."
    )
    return exercise


def errors(random: Random) -> Exercise:
    """A budget some of whose cells are wrong."""
    exercise = Exercise(empty_workbook())
    name = random.choice(["Budget", "Plan", "Costs"])
    sheet = exercise.workbook.create_sheet(name)
    top, left, rows = random.choice([1, 3, 4]), random.choice([1, 2]), random.randint(8, 12)
    quarters = 4
    labels = random.sample(CITIES, rows)
    inputs = [[random.randint(20, 900) for _ in range(quarters)] for _ in labels]

    def at(row: int, column: int) -> str:
        """Return an address: data rows and columns from 0, quarters first, then total, share and average."""
        return address(top + 1 + row, left + 1 + column)

    for column, heading in enumerate(["Site", "Q1", "Q2", "Q3", "Q4", "Year", "Share", "Average"]):
        sheet.cell(top, left + column).value = heading
    right: dict[str, str] = {}
    for row, label in enumerate([*labels, "Total"]):
        sheet.cell(top + 1 + row, left).value = label
        for column in range(quarters):
            if row < rows:
                sheet[at(row, column)].value = inputs[row][column]
            else:
                right[at(row, column)] = f"=SUM({at(0, column)}:{at(rows - 1, column)})"
        right[at(row, 4)] = f"=SUM({at(row, 0)}:{at(row, 3)})"
        right[at(row, 5)] = f"={at(row, 4)}/{at(rows, 4)}"
        right[at(row, 6)] = f"=AVERAGE({at(row, 0)}:{at(row, 3)})"
    for cell, formula in right.items():
        sheet[cell].value = formula
        if cell in {at(row, 5) for row in range(rows + 1)}:
            sheet[cell].number_format = "0.0%"

    def values() -> dict[str, Value]:
        total = sum(map(sum, inputs))
        results: dict[str, Value] = {}
        for row in range(rows + 1):
            numbers = inputs[row] if row < rows else [sum(column) for column in zip(*inputs, strict=True)]  # fmt: skip
            if row == rows:
                results |= {at(row, column): number for column, number in enumerate(numbers)}
            results[at(row, 4)], results[at(row, 5)] = sum(numbers), sum(numbers) / total
            results[at(row, 6)] = sum(numbers) / quarters
        return results

    first, second, third, fourth, fifth = random.sample(range(rows), 5)
    column = random.randrange(quarters)
    wrong = {
        at(first, 4): inputs[first][0] + inputs[first][1] + inputs[first][2] + 3,
        at(second, 4): f"=SUM({at(second, 0)}:{at(second, 2)})",
        at(third, 5): f"={at((third + 1) % rows, 4)}/{at(rows, 4)}",
        at(fourth, 6): f"=SUM({at(fourth, 0)}:{at(fourth, 3)})/5",
        at(rows, column): f"=SUM({at(0, column)}:{at(rows - 2, column)})",
    }
    for cell, content in wrong.items():
        sheet[cell].value = content
        exercise.want(cell, name, cell, values()[cell], right[cell], 0.00051)
    spoiled = at(fifth, random.randrange(quarters))
    unspoiled = sheet[spoiled].value
    sheet[spoiled].value = f"{unspoiled} "
    exercise.want(spoiled, name, spoiled, unspoiled)
    changes: dict[Cell, float | str] = {}
    for row in range(rows):
        for quarter in range(quarters):
            inputs[row][quarter] += 7 * row + 11 * quarter + row * quarter + 1
            changes[name, at(row, quarter)] = inputs[row][quarter]
    exercise.what_if(changes, {(name, cell): value for cell, value in values().items()})
    exercise.request = (
        f"The sheet {name} has quarters of several sites, with the sum and the average of each, its share in the whole year, and "
        "totals below. Six of its cells are wrong: five hold something else than the formula that belongs there, and one number "
        "is kept as text. Find and repair them in place; leave all other cells as they are."
    )
    return exercise
