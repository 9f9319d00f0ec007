"""Plans: a cash-flow forecast, and scenarios with a break-even point."""

from __future__ import annotations

from random import Random

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.tables import (
    ANSWER,
    answer_sheet,
    assumptions,
    empty_workbook,
    row_of,
    want_formulas,
)
from hud_benchmarks.sheetbench.words import MONTHS


def cash(random: Random) -> Exercise:
    """Cash of the next months, with payments that come late."""
    exercise = Exercise(empty_workbook())
    book, months = exercise.workbook, 8
    sales = book.create_sheet("Sales")
    first = random.randrange(12)
    amounts = [float(random.randint(200, 900) * 100) for _ in range(months + 3)]
    labels = [MONTHS[(first + place) % 12] for place in range(months + 3)]
    top = random.choice([1, 3])
    sales.cell(top, 1).value, sales.cell(top, 2).value = "Month", "Sales"
    for row, (label, amount) in enumerate(zip(labels, amounts, strict=True), top + 1):
        sales.cell(row, 1).value, sales.cell(row, 2).value = label, amount
    now = random.randint(30, 50)
    later = random.randint(20, 40)
    terms: dict[str, float] = {
        "Paid in the month of the sale": now / 100,
        "Paid one month later": later / 100,
        "Paid two months later": (98 - now - later) / 100,
        "Purchases, of next month's sales": random.randint(40, 60) / 100,
        "Fixed costs a month": float(random.randint(40, 120) * 100),
        "Cash at the beginning": float(random.randint(10, 90) * 1000),
    }
    assumptions(book, "Terms", terms, 2)
    answer_sheet(book, ["Month", "Collected", "Purchases", "Fixed costs", "Net", "Cash"])
    formulas: dict[Cell, str] = {}
    for month in range(months):
        row, own = month + 2, top + 3 + month
        book[ANSWER].cell(row, 1).value = labels[month + 2]
        formulas[ANSWER, f"B{row}"] = (
            f"=Sales!B{own}*Terms!$B$2+Sales!B{own - 1}*Terms!$B$3+Sales!B{own - 2}*Terms!$B$4"
        )
        formulas[ANSWER, f"C{row}"] = f"=Sales!B{own + 1}*Terms!$B$5"
        formulas[ANSWER, f"D{row}"] = "=Terms!$B$6"
        formulas[ANSWER, f"E{row}"] = f"=B{row}-C{row}-D{row}"
        before = "Terms!$B$7" if month == 0 else f"F{row - 1}"
        formulas[ANSWER, f"F{row}"] = f"={before}+E{row}"

    def values() -> dict[Cell, Value]:
        now, later, latest, bought, fixed, cash = terms.values()
        results: dict[Cell, Value] = {}
        for month in range(months):
            place = month + 2
            collected = amounts[place] * now + amounts[place - 1] * later + amounts[place - 2] * latest  # fmt: skip
            purchases = amounts[place + 1] * bought
            net = collected - purchases - fixed
            cash += net
            line = zip("BCDEF", (collected, purchases, fixed, net, cash), strict=True)
            results |= {(ANSWER, f"{column}{month + 2}"): figure for column, figure in line}
        return results

    want_formulas(exercise, values(), formulas, row_of)
    changes: dict[Cell, float | str] = {}
    for row, term in enumerate(terms, 2):
        terms[term] *= 1.06
        changes["Terms", f"B{row}"] = terms[term]
    for row in range(len(amounts)):
        amounts[row] += 1000.0 * (row + 1)
        changes["Sales", f"B{top + 1 + row}"] = amounts[row]
    exercise.what_if(changes, values())
    exercise.request = (
        "Forecast the cash in the sheet ANSWER with formulas, for each month that it lists: what is collected of the sales of this "
        "month and of the two before, the purchases (a share of next month's sales, paid in this month), the fixed costs, the net of "
        "the three, and the cash at the end of the month. Sales are in the sheet Sales, shares and other terms in the sheet Terms. "
        "Costs are written as positive numbers. Nothing is rounded. The formulas must follow when sales or terms change."
    )
    return exercise


def scenarios(random: Random) -> Exercise:
    """Profit and break-even in scenarios, and by price and volume."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    inputs: dict[str, float] = {
        "Price": float(random.randint(30, 90)),
        "Variable cost": float(random.randint(6, 18)),
        "Units": float(random.randint(40, 200) * 100),
        "Fixed costs": float(random.randint(20, 90) * 1000),
    }
    start = random.choice([2, 3, 5])
    cells = assumptions(book, "Inputs", inputs, start)
    cases = book.create_sheet("Scenarios")
    names = ["Low", "Base", "High", "Crisis"]
    factors = [[1.0 if name == "Base" else random.randint(80, 120) / 100 for _ in range(3)] for name in names]  # fmt: skip
    for place, heading in enumerate(["Scenario", "Price", "Variable cost", "Units"], 1):
        cases.cell(1, place).value = heading
    for row, (name, own) in enumerate(zip(names, factors, strict=True), 2):
        cases.cell(row, 1).value = name
        for place, factor in enumerate(own, 2):
            cases.cell(row, place).value = factor
    headings = ["Scenario", "Revenue", "Contribution", "Profit", "Break-even units", "Margin"]
    answer_sheet(book, headings)
    price, cost, units, fixed = cells.values()
    formulas: dict[Cell, str] = {}
    for row, name in enumerate(names, 2):
        book[ANSWER].cell(row, 1).value = name
        formulas[ANSWER, f"B{row}"] = f"={price}*Scenarios!$B{row}*{units}*Scenarios!$D{row}"
        margin = f"({price}*Scenarios!$B{row}-{cost}*Scenarios!$C{row})"
        formulas[ANSWER, f"C{row}"] = f"={margin}*{units}*Scenarios!$D{row}"
        formulas[ANSWER, f"D{row}"] = f"=C{row}-{fixed}"
        formulas[ANSWER, f"E{row}"] = f"=ROUNDUP({fixed}/{margin},0)"
        formulas[ANSWER, f"F{row}"] = f"=D{row}/B{row}"
    steps = sorted(random.sample([-0.2, -0.15, -0.1, -0.05, 0.05, 0.1, 0.15, 0.2], 4))
    grid = book.create_sheet("Sensitivity")
    grid["A1"].value = "Profit: price down, units across"
    for place, step in enumerate(steps):
        for cell in (f"A{place + 3}", f"{'BCDE'[place]}2"):
            grid[cell].value, grid[cell].number_format = step, "0%"
    for row in range(3, 7):
        for column in "BCDE":
            formulas["Sensitivity", f"{column}{row}"] = (
                f"=({price}*(1+$A{row})-{cost})*{units}*(1+{column}$2)-{fixed}"
            )

    def values() -> dict[Cell, Value]:
        price, cost, units, fixed = inputs.values()
        results: dict[Cell, Value] = {}
        for row, (dearer, costlier, more) in enumerate(factors, 2):
            margin = price * dearer - cost * costlier
            revenue, contribution = price * dearer * units * more, margin * units * more
            even = -int(-(fixed / margin - 1e-9) // 1)
            figures = (revenue, contribution, contribution - fixed, even, (contribution - fixed) / revenue)  # fmt: skip
            line = zip("BCDEF", figures, strict=True)
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in line}
        for row, down in enumerate(steps, 3):
            for column, across in zip("BCDE", steps, strict=True):
                profit = (price * (1 + down) - cost) * units * (1 + across) - fixed
                results["Sensitivity", f"{column}{row}"] = profit
        return results

    results = values()
    answers = {cell: value for cell, value in results.items() if cell[0] == ANSWER}
    want_formulas(exercise, answers, formulas, row_of, tolerance=0.00051)
    others = {cell: value for cell, value in results.items() if cell[0] != ANSWER}
    want_formulas(exercise, others, formulas, lambda cell: f"sensitivity {row_of(cell)}")
    changes: dict[Cell, float | str] = {}
    for place, label in enumerate(inputs):
        inputs[label] += inputs[label] // 10 + place
        changes["Inputs", f"B{start + place}"] = inputs[label]
    for row, own in enumerate(factors, 2):
        for place, column in enumerate("BCD"):
            own[place] = round(own[place] + 0.03 - 0.01 * place, 2)
            changes["Scenarios", f"{column}{row}"] = own[place]
    for place in range(len(steps)):
        steps[place] = round(steps[place] + 0.01 * (place + 1), 2)
        for cell in (f"A{place + 3}", f"{'BCDE'[place]}2"):
            changes["Sensitivity", cell] = steps[place]
    exercise.what_if(changes, values())
    exercise.request = (
        "Calculate the scenarios with formulas in the sheet ANSWER. The sheet Scenarios has a factor for price, variable cost of a "
        "unit and units of each scenario, by which those of the sheet Inputs are multiplied. Wanted are revenue, contribution "
        "(revenue less variable costs), profit (contribution less fixed costs), the units to break even, rounded up to whole "
        "units, and the margin, profit divided by revenue. Then fill the sheet Sensitivity with formulas: the profit of the inputs "
        "themselves, with the price changed by the share at the left and the units by the share above. Nothing else is rounded. "
        "The formulas must follow when inputs, factors or shares change."
    )
    return exercise
