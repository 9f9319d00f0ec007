"""Rows to be put in order: duplicates, wide tables, sheets to be merged, reports, ledgers."""

from __future__ import annotations

import datetime as dt
from random import Random

from hud_benchmarks.sheetbench.grading.exercise import Exercise, Value
from hud_benchmarks.sheetbench.tables import answer_sheet, empty_workbook, lay, want_records
from hud_benchmarks.sheetbench.words import CITIES, COMPANIES, MONTHS, PRODUCTS, REGIONS


def duplicates(random: Random) -> Exercise:
    """Orders that were exported several times."""
    exercise = Exercise(empty_workbook())
    rows: list[list[Value]] = []
    latest: dict[int, list[Value]] = {}
    for order in random.sample(range(4000, 4999), random.randint(18, 24)):
        day = dt.date(2024, random.randint(1, 11), random.randint(1, 28))
        company = random.choice(COMPANIES)
        for _ in range(random.choice([1, 1, 2, 3])):
            state = random.choice(["open", "paid", "sent", "returned"])
            latest[order] = [order, company, day, state, random.randint(1000, 90_000) / 100]
            rows.append(list(latest[order]))
            day += dt.timedelta(days=random.randint(1, 9))
    random.shuffle(rows)
    columns = ["Order", "Customer", "Updated", "State", "Total"]
    lay(exercise.workbook, random, "Orders", columns, rows)
    answer_sheet(exercise.workbook, columns)
    want_records(exercise, [latest[order] for order in sorted(latest)])
    exercise.request = (
        "The orders were exported several times. Write each order once to the sheet ANSWER, with what its latest update says, "
        "sorted by order number."
    )
    return exercise


def unpivot(random: Random) -> Exercise:
    """A table with a column for each month, to be made long."""
    exercise = Exercise(empty_workbook())
    start = random.randint(0, 5)
    months = MONTHS[start : start + 6]
    products = sorted(random.sample(PRODUCTS, 6))
    rows: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for product in products:
        units = [random.choice([None, 0, *[random.randint(3, 400)] * 4]) for _ in months]
        rows.append([product, *units])
        wanted += [[product, month, n] for month, n in zip(months, units, strict=True) if n is not None]  # fmt: skip
    random.shuffle(rows)
    lay(exercise.workbook, random, "Sales", ["Product", *months], rows, shuffled=False)
    answer_sheet(exercise.workbook, ["Product", "Month", "Units"])
    want_records(exercise, wanted)
    exercise.request = (
        "Turn the sales into a long table in the sheet ANSWER, one row for each product and month, products in alphabetical order "
        "and the months of each in the order of the columns. Months without an entry are left out; a 0 is an entry."
    )
    return exercise


def merge(random: Random) -> Exercise:
    """Monthly sheets with other headings and orders of columns."""
    exercise = Exercise(empty_workbook())
    spelled = {
        "Date": ["Date", "Invoice date", "Day"],
        "Invoice": ["Invoice", "Invoice no.", "Inv #"],
        "Customer": ["Customer", "Client", "Sold to"],
        "Net": ["Net", "Net amount", "Amount (net)"],
    }
    wanted: list[tuple[dt.date, int, str, float, str]] = []
    numbers = iter(random.sample(range(20_000, 29_999), 60))
    for place, month in enumerate(sorted(random.sample(range(12), 3))):
        rows: list[list[Value]] = []
        sheet = f"{MONTHS[month]} 2024"
        for _ in range(random.randint(9, 13)):
            day = dt.date(2024, month + 1, random.randint(1, 28))
            number, company = next(numbers), random.choice(COMPANIES)
            net = random.randint(5_000, 400_000) / 100
            rows.append([day, number, company, net])
            wanted.append((day, number, company, net, MONTHS[month]))
        random.shuffle(rows)
        rows.append([None, None, "Total", sum(float(str(row[3])) for row in rows)])
        lay(exercise.workbook, random, sheet, [names[place] for names in spelled.values()], rows)
    answer_sheet(exercise.workbook, ["Date", "Invoice", "Customer", "Net", "Month"])
    want_records(exercise, [list(row) for row in sorted(wanted)], parts=5)
    exercise.request = (
        "Merge the invoices of the monthly sheets into the sheet ANSWER, without their totals, sorted by date and then by invoice "
        "number. The last column is the sheet's month, such as Jan. The sheets have other headings for the same columns."
    )
    return exercise


def report(random: Random) -> Exercise:
    """A printed report with groups, subtotals and repeated headings, to be made a table."""
    exercise = Exercise(empty_workbook())
    sheet = exercise.workbook.create_sheet("Report")
    headings = ["Region", "City", "Product", "Units", "Revenue"]
    sheet.append([f"Revenue {random.randint(2020, 2025)}", None, None, f"page 1 of {2}"])
    sheet.append([])
    sheet.append(headings)
    wanted: list[list[Value]] = []
    cities = random.sample(CITIES, 12)
    for place, region in enumerate(random.sample(REGIONS, 4)):
        if place == 2:
            sheet.append([])
            sheet.append([None, None, None, "page 2 of 2"])
            sheet.append(headings)
        block: list[list[Value]] = []
        for city in cities[place * 3 : place * 3 + random.randint(2, 3)]:
            block += [
                [region, city, product, random.randint(1, 300), random.randint(1000, 900_000) / 100]
                for product in random.sample(PRODUCTS, random.randint(2, 4))
            ]
        for number, row in enumerate(block):
            first_of_city = number == 0 or block[number - 1][1] != row[1]
            sheet.append([region if number == 0 else None, row[1] if first_of_city else None, *row[2:]])  # fmt: skip
        units, revenue = (sum(float(str(row[column])) for row in block) for column in (3, 4))
        sheet.append([f"Total {region}", None, None, int(units), round(revenue, 2)])
        wanted += block
    answer_sheet(exercise.workbook, headings)
    want_records(exercise, wanted, parts=5)
    exercise.request = (
        "Turn the printed report into a table in the sheet ANSWER, in the order of the report: region and city in every row, "
        "without empty rows, totals, page numbers and repeated headings."
    )
    return exercise


def ledgers(random: Random) -> Exercise:
    """A ledger and a bank statement that do not agree."""
    exercise = Exercise(empty_workbook())
    ledger: list[list[Value]] = []
    bank: list[list[Value]] = []
    wanted: list[list[Value]] = []
    for number in random.sample(range(100, 999), random.randint(34, 44)):
        reference, amount = f"R{number}", random.randint(1000, 500_000) / 100
        day = dt.date(2024, random.randint(1, 12), random.randint(1, 28))
        kind = random.choice(["same"] * 5 + ["bank", "ledger", "amount"])
        booked = amount
        if kind == "amount":
            booked = random.choice([round(amount + 0.1, 2), round(amount * 10, 2), amount + 9])
            wanted.append([reference, amount, booked, round(amount - booked, 2), "amount differs"])
        if kind != "ledger":
            ledger.append([day, reference, amount])
        else:
            wanted.append([reference, None, amount, -amount, "not in ledger"])
        if kind != "bank":
            later = day + dt.timedelta(days=random.randint(0, 5))
            text = random.choice([f"Payment {reference}", f"ref {reference.lower()} thank you", f"{reference}/{random.choice(COMPANIES)}"])  # fmt: skip
            bank.append([later, text, booked])
        else:
            wanted.append([reference, amount, None, amount, "not in bank"])
    random.shuffle(ledger)
    bank.sort(key=lambda row: (str(row[0]), str(row[1])))
    lay(exercise.workbook, random, "Ledger", ["Date", "Reference", "Amount"], ledger)
    lay(exercise.workbook, random, "Bank", ["Booked", "Text", "Amount"], bank)
    answer_sheet(exercise.workbook, ["Reference", "Ledger", "Bank", "Difference", "Finding"])
    want_records(exercise, sorted(wanted, key=lambda row: str(row[0])))
    exercise.request = (
        "Reconcile the ledger with the bank statement, whose texts contain the reference (R and three digits, in capital or small "
        "letters). Write every reference that does not agree to the sheet ANSWER, sorted by reference, with the amount in the ledger, "
        "the amount at the bank (empty where there is none), the difference ledger minus bank (a missing amount counts as 0), and "
        "the finding: `amount differs`, `not in ledger` or `not in bank`. Dates may differ."
    )
    return exercise
