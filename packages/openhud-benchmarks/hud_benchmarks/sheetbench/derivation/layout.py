"""Charts whose ranges are wrong, and a form that is to be protected."""

from __future__ import annotations

from random import Random

from openpyxl.chart import BarChart, LineChart, Reference
from openpyxl.chart.series import SeriesLabel, StrRef

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.tables import empty_workbook, row_of, want_formulas
from hud_benchmarks.sheetbench.words import MONTHS, PRODUCTS
from hud_benchmarks.sheetbench.workbook.cells import address
from hud_benchmarks.sheetbench.workbook.state import LOCKED, PROTECTED


def charts(random: Random) -> Exercise:
    """Two charts that show too few months, and a wrong column."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    figures, report = book.create_sheet("Figures"), book.create_sheet("Charts")
    names = random.sample(["Revenue", "Costs", "Orders", "Returns", "Visits"], 4)
    top, left = random.choice([1, 3, 4]), random.choice([1, 2])
    months = [*MONTHS, *(f"{month} +1" for month in MONTHS[: random.randint(2, 6)])]
    for column, heading in enumerate(["Month", *names]):
        figures.cell(top, left + column).value = heading
    for row, month in enumerate(months, 1):
        figures.cell(top + row, left).value = month
        for column in range(4):
            figures.cell(top + row, left + 1 + column).value = random.randint(50, 900)
    last = top + len(months)

    def area(column: int, end: int) -> Reference:
        return Reference(figures, min_col=left + column, min_row=top + 1, max_row=end)

    def plain(column: int) -> str:
        return f"{address(top + 1, left + column)}:{address(last, left + column)}"

    ends = random.sample(range(top + 6, last - 1), 2)
    order = random.sample(range(1, 5), 4)
    shown = [order[:2], order[2:]]
    for number, (kind, end) in enumerate(zip((BarChart, LineChart), ends, strict=True), 1):
        chart = kind()
        chart.title = f"{names[shown[number - 1][0] - 1]} and {names[shown[number - 1][1] - 1]}"
        wrong = next(column for column in range(1, 5) if column not in shown[number - 1])
        for place, column in enumerate(shown[number - 1]):
            # The second series of each chart has the right heading and another column's figures.
            chart.add_data(area(column if place == 0 else wrong, end))
            heading = f"'Figures'!${address(1, left + column)[:-1]}${top}"
            chart.series[-1].tx = SeriesLabel(strRef=StrRef(heading))
        chart.set_categories(area(0, end))
        report.add_chart(chart, f"B{2 + (number - 1) * 18}")
        series = [(f"Figures!{plain(0)}", f"Figures!{plain(column)}") for column in shown[number - 1]]  # fmt: skip
        exercise.want_setting(f"chart {number}", ("Charts", "chart", number), series)
        for place, column in enumerate(shown[number - 1], 1):
            arguments = {
                "sheet": "Charts",
                "chart": number,
                "series": place,
                "data_sheet": "Figures",
            }
            ranges = {"values": plain(column), "categories": plain(0)}
            exercise.steps.append(("set_chart_series", {**arguments, **ranges}))
    exercise.request = (
        "Months were added to the sheet Figures, and the two charts of the sheet Charts do not show them. Give every series the "
        "months of all rows as categories and, as values, its own column for all rows. The first chart shows "
        f"{names[shown[0][0] - 1]} and {names[shown[0][1] - 1]}, in this order, the second one {names[shown[1][0] - 1]} and "
        f"{names[shown[1][1] - 1]}; at present the second series of each has another column."
    )
    return exercise


def form(random: Random) -> Exercise:
    """An order form that gets formulas and protection."""
    exercise = Exercise(empty_workbook())
    name = random.choice(["Order form", "Offer", "Delivery note"])
    sheet = exercise.workbook.create_sheet(name)
    top, count = random.choice([6, 7, 9]), random.randint(6, 9)
    customer, date, tax = "B3", "B4", f"D{top + count + 2}"
    sheet["A1"].value = name
    sheet["A3"].value, sheet["A4"].value = "Customer", "Date"
    rate = random.choice([0.07, 0.1, 0.19, 0.2])
    for column, heading in enumerate(["Article", "Quantity", "Price", "Amount"], 1):
        sheet.cell(top, column).value = heading
    articles = random.sample(PRODUCTS, count)
    prices = [random.randint(200, 9000) / 100 for _ in articles]
    quantities = [random.randint(0, 9) for _ in articles]
    for row, (article, price, quantity) in enumerate(zip(articles, prices, quantities, strict=True), top + 1):  # fmt: skip
        sheet.cell(row, 1).value, sheet.cell(row, 3).value = article, price
        sheet.cell(row, 2).value = quantity
    end = top + count
    labels = ("Net", f"Tax {rate:.0%}", "To pay")
    for row, label in enumerate(labels, end + 1):
        sheet.cell(row, 3).value = label
    formulas: dict[Cell, str] = {(name, f"D{row}"): f"=B{row}*C{row}" for row in range(top + 1, end + 1)}  # fmt: skip
    formulas[name, f"D{end + 1}"] = f"=SUM(D{top + 1}:D{end})"
    formulas[name, tax] = f"=ROUND(D{end + 1}*{rate},2)"
    formulas[name, f"D{end + 3}"] = f"=D{end + 1}+{tax}"

    def values() -> dict[Cell, Value]:
        amounts = [price * quantity for price, quantity in zip(prices, quantities, strict=True)]
        results: dict[Cell, Value] = {(name, f"D{row}"): amount for row, amount in enumerate(amounts, top + 1)}  # fmt: skip
        net, taxed = sum(amounts), round(sum(amounts) * rate + 1e-9, 2)
        results[name, f"D{end + 1}"], results[name, tax] = net, taxed
        results[name, f"D{end + 3}"] = net + taxed
        return results

    want_formulas(exercise, values(), formulas, row_of, tolerance=0.00051)
    changes: dict[Cell, float | str] = {}
    for row in range(count):
        quantities[row] += row + 2
        changes[name, f"B{top + 1 + row}"] = quantities[row]
        prices[row] += row + 1
        changes[name, f"C{top + 1 + row}"] = prices[row]
    exercise.what_if(changes, values())
    inputs = [customer, date, *(f"B{row}" for row in range(top + 1, end + 1))]
    exercise.want_setting("protection", (name, PROTECTED), True)
    for cell in inputs:
        exercise.want_setting("protection", (name, cell, LOCKED), False)
    for area in (f"{customer}:{date}", f"B{top + 1}:B{end}"):
        unlock = {"sheet": name, "range": area, "locked": False}
        exercise.steps.append(("format_cells", unlock))
    exercise.steps.append(("protect_sheet", {"sheet": name, "on": True}))
    exercise.request = (
        f"Finish the sheet {name}: formulas for the amount of each article, for the net sum, for the tax of {rate:.0%} rounded to "
        "cents, and for the sum to pay. Then protect the sheet so that exactly these cells can be filled in: the customer, the date "
        "and the quantities of the articles."
    )
    return exercise
