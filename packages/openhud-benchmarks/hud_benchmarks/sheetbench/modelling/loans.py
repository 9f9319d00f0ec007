"""An amortization schedule, and the value of investments."""

from __future__ import annotations

from random import Random

from hud_benchmarks.sheetbench.grading.exercise import Cell, Exercise, Value
from hud_benchmarks.sheetbench.tables import (
    ANSWER,
    answer_sheet,
    assumptions,
    column_of,
    empty_workbook,
    row_of,
    want_formulas,
)
from hud_benchmarks.sheetbench.words import COMPANIES


def amortization(random: Random) -> Exercise:
    """A loan that is paid off by equal payments and a little more."""
    exercise = Exercise(empty_workbook())
    book, name = exercise.workbook, random.choice(["Loan", "Terms", "Mortgage"])
    top, months = random.randint(2, 5), random.choice([18, 24, 30])
    inputs: dict[str, float] = {
        "Amount": random.randint(20, 300) * 1000,
        "Rate a year": random.randint(20, 90) / 1000,
        "Months": months,
        "Extra a month": random.choice([25, 50, 75, 100]),
    }
    cells = assumptions(book, name, inputs, top)
    book[name]["A1"].value = "Terms of the loan"
    answer_sheet(book, ["Month", "Payment", "Interest", "Principal", "Balance"])
    amount, rate, count, extra = cells.values()
    formulas: dict[Cell, str] = {}
    for month in range(1, months + 1):
        row = month + 1
        book[ANSWER].cell(row, 1).value = month
        before = amount if month == 1 else f"E{row - 1}"
        formulas[ANSWER, f"B{row}"] = (
            f"=MIN(PMT({rate}/12,{count},-{amount})+{extra},{before}+C{row})"
        )
        formulas[ANSWER, f"C{row}"] = f"={before}*{rate}/12"
        formulas[ANSWER, f"D{row}"] = f"=B{row}-C{row}"
        formulas[ANSWER, f"E{row}"] = f"={before}-D{row}"
    end = months + 2
    book[ANSWER].cell(end, 1).value = "Sum"
    for column in "BCD":
        formulas[ANSWER, f"{column}{end}"] = f"=SUM({column}2:{column}{end - 1})"

    def values(amount: float, rate: float, count: float, extra: float) -> dict[Cell, Value]:
        monthly, balance = rate / 12, amount
        annuity = amount * monthly / (1 - (1 + monthly) ** -count)
        results: dict[Cell, Value] = {}
        sums = [0.0, 0.0, 0.0]
        for row in range(2, months + 2):
            interest = balance * monthly
            payment = min(annuity + extra, balance + interest)
            balance -= payment - interest
            figures = (payment, interest, payment - interest)
            sums = [total + figure for total, figure in zip(sums, figures, strict=True)]
            line = zip("BCDE", (*figures, balance), strict=True)
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in line}
        return results | {(ANSWER, f"{column}{end}"): total for column, total in zip("BCD", sums, strict=True)}  # fmt: skip

    def part(cell: str) -> str:
        return "sums" if cell[1:] == str(end) else column_of(cell)

    base = tuple(inputs.values())
    want_formulas(exercise, values(*base), formulas, part)
    places = [(name, cells[label].replace(f"{name}!", "").replace("$", "")) for label in inputs]
    others = base[0] * 1.3, base[1] + 0.0125, months, base[3] + 240
    # The schedule has no row for more months; with fewer, its last rows are zeros.
    shorter = base[0] * 1.3, base[1] + 0.0125, months - 5, base[3] + 240
    for terms in (others, shorter):
        exercise.what_if(dict(zip(places, terms, strict=True)), values(*terms))
    exercise.request = (
        f"Build the amortization schedule in the sheet ANSWER with formulas over the terms in the sheet {name}. The payment of a "
        "month is the annuity for the amount, the rate and the number of months, paid at the end of each month, plus the extra, but "
        "never more than the balance with its interest. Interest is a twelfth of the yearly rate on the balance before the "
        "payment; principal is payment less interest; balance is what remains. The last row has the sums of payments, interest and "
        "principal. Nothing is rounded. The formulas must follow when the terms change."
    )
    return exercise


def investments(random: Random) -> Exercise:
    """Present value, internal rate of return and payback of projects."""
    exercise = Exercise(empty_workbook())
    book = exercise.workbook
    sheet = book.create_sheet("Projects")
    names, years = random.sample(COMPANIES, 4), random.randint(5, 7)
    rate, top = random.randint(40, 110) / 1000, random.choice([3, 4, 5])
    sheet["A1"].value, sheet["B1"].value = "Discount rate", rate
    flows = [
        [-random.randint(200, 440) * 100.0]
        + [random.randint(90, 260) * 100.0 for _ in range(years)]
        for _ in names
    ]
    for column, year in enumerate(range(years + 1), 2):
        sheet.cell(top, column).value = year
        for row, flow in enumerate(flows, top + 1):
            sheet.cell(row, column).value = flow[year]
    sheet.cell(top, 1).value = "Project / year"
    answer_sheet(book, ["Project", "NPV", "IRR", "Index", "Payback"])
    last = "BCDEFGHIJ"[years]
    formulas: dict[Cell, str] = {}
    for row, name in enumerate(names):
        sheet.cell(top + 1 + row, 1).value = book[ANSWER].cell(row + 2, 1).value = name
        own, at = top + 1 + row, row + 2
        outlay, returns = f"Projects!$B${own}", f"Projects!$C${own}:${last}${own}"
        formulas[ANSWER, f"B{at}"] = f"=NPV(Projects!$B$1,{returns})+{outlay}"
        formulas[ANSWER, f"C{at}"] = f"=IRR(Projects!$B${own}:${last}${own})"
        formulas[ANSWER, f"D{at}"] = f"=NPV(Projects!$B$1,{returns})/-{outlay}"
        sums = "+".join(
            f"(SUM(Projects!$B${own}:{column}${own})<0)" for column in "BCDEFGHIJ"[: years + 1]
        )
        formulas[ANSWER, f"E{at}"] = f"={sums}"

    def values(rate: float) -> dict[Cell, Value]:
        results: dict[Cell, Value] = {}
        for row, flow in enumerate(flows, 2):
            value = _present_value(flow, rate)
            back = next(year for year in range(years + 1) if sum(flow[: year + 1]) >= 0)
            figures = (value, _internal_rate(flow), (value - flow[0]) / -flow[0], back)
            line = zip("BCDE", figures, strict=True)
            results |= {(ANSWER, f"{column}{row}"): figure for column, figure in line}
        return results

    want_formulas(exercise, values(rate), formulas, row_of, tolerance=0.00051)
    changes: dict[Cell, float | str] = {("Projects", "B1"): rate + 0.021}
    for row, flow in enumerate(flows):
        for year in range(1, years + 1):
            flow[year] += 1000 * (row + 1) + 500 * year
            changes["Projects", f"{'BCDEFGHIJ'[year]}{top + 1 + row}"] = flow[year]
    exercise.what_if(changes, values(rate + 0.021))
    # Outlays with which every project pays back in another year, every other one to the cent.
    for row, flow in enumerate(flows):
        back = next(year for year in range(years + 1) if sum(flow[: year + 1]) >= 0)
        other = back + 1 if back < years else back - 1
        flow[0] = flow[other] / 2 * (row % 2) - sum(flow[1 : other + 1])
        changes["Projects", f"B{top + 1 + row}"] = flow[0]
    exercise.what_if(changes, values(rate + 0.021))
    exercise.request = (
        "Value the projects of the sheet Projects in the sheet ANSWER with formulas, for each project: the net present value at the "
        "discount rate, with the outlay of year 0 not discounted and the flows of later years at the end of each; the internal rate "
        "of return; the profitability index, the present value of the flows after year 0 divided by the outlay; and the payback, the "
        "first year at whose end the flows so far, not discounted, sum up to 0 or more. Nothing is rounded. The formulas must follow "
        "when the rate or the flows change."
    )
    return exercise


def _present_value(flow: list[float], rate: float) -> float:
    return sum(payment / (1 + rate) ** year for year, payment in enumerate(flow))


def _internal_rate(flow: list[float]) -> float:
    low, high = -0.9, 10.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _present_value(flow, middle) > 0 else (low, middle)
    return low
