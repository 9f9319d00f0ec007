"""Works on tables of values: a ledger corrected, orders distributed over sheets, a plan of shifts."""

from __future__ import annotations

from random import Random

from hud_benchmarks.autonomy.applications.spreadsheet.work import Work
from hud_benchmarks.autonomy.applications.spreadsheet.workbook import Cell, copied, table

NAMES = (
    "Adler", "Bassett", "Corbin", "Dunmore", "Ebner", "Faulkner", "Garrick", "Holt", "Ingram", "Jarvis", "Keller", "Lomax",
    "Marlow", "Nolan", "Osborne", "Pryor", "Quigley", "Rosen", "Sutter", "Thorne", "Upton", "Vance", "Wexler", "Yates",
)  # fmt: skip
REGIONS = ("North", "South", "West")
_LEDGER = 26
_STATES = ("open", "paid", "overdue")


def ledger(random: Random) -> Work:
    """Entries of a ledger, with corrections on a sheet of their own."""
    numbers = sorted(random.sample(range(200, 400), _LEDGER + 2))
    rows: list[list[Cell]] = [
        [number, random.choice(NAMES), random.randint(100, 9900), random.choice(_STATES)]
        for number in numbers
    ]
    rows, new = rows[:_LEDGER], rows[_LEDGER:]
    last = _LEDGER + 12
    totals = table(
        ["State", "Entries", "Amount"],
        *([state, f'=COUNTIF(Ledger!D2:D{last},A{row})', f'=SUMIF(Ledger!D2:D{last},A{row},Ledger!C2:C{last})']
        for row, state in enumerate(_STATES, 2)),
    )  # fmt: skip
    head = ["No", "Customer", "Amount", "State"]
    before = {"Ledger": table(head, *rows), "Totals": totals, "Corrections": table(["Correction"])}
    wanted = copied(before)
    corrections = []
    for place, line in enumerate(random.sample(range(1, _LEDGER + 1), 7)):
        entry = wanted["Ledger"][line]
        if place < 3:
            entry[2] = random.randint(10_000, 20_000)
            corrections.append(f"Entry {entry[0]}: the amount is {entry[2]}.")
        elif place < 5:
            entry[3] = random.choice([state for state in _STATES if state != entry[3]])
            corrections.append(f"Entry {entry[0]}: it is {entry[3]}.")
        else:
            entry[2] = entry[3] = None
            corrections.append(f"Entry {entry[0]}: cancelled.")
    corrections += [
        f"New entry {no}: {name}, {amount}, {state}." for no, name, amount, state in new
    ]
    sheet = table(["Correction"], *([text] for text in corrections))
    before["Corrections"] = wanted["Corrections"] = sheet
    wanted["Ledger"] += new
    return Work(
        "Apply the corrections of the sheet Corrections to the sheet Ledger. Amount and state of a cancelled entry are emptied, "
        "its number and customer stay. New entries are added below the last one, in the order in which they are listed. The "
        "formulas of the sheet Totals stay; they follow.",
        before,
        wanted,
    )


def distribution(random: Random) -> Work:
    """Orders of all regions, to be written to the sheets of the regions, the largest first."""
    numbers = random.sample(range(1000, 2000), 18)
    amounts = random.sample(range(100, 9900), 18)
    rows = [
        (number, name, REGIONS[place % 3], amount)
        for place, (number, name, amount) in enumerate(
            zip(numbers, random.sample(NAMES, 18), amounts, strict=True)
        )
    ]
    random.shuffle(rows)
    head = ["Order", "Customer", "Amount"]
    before = {
        "All": table(["Order", "Customer", "Region", "Amount"], *rows),
        **{region: table(head) for region in REGIONS},
    }
    wanted = copied(before)
    for region in REGIONS:
        of_region = sorted((row for row in rows if row[2] == region), key=lambda row: -row[3])
        wanted[region] = table(head, *((no, name, amount) for no, name, _, amount in of_region))
    return Work(
        f"Write the orders of the sheet All to the sheets {', '.join(REGIONS)}, each to the one of its region: order, customer "
        "and amount, from the second row on, the largest amount first. The sheet All stays as it is.",
        before,
        wanted,
    )


def rota(random: Random) -> Work:
    """A rota of four weeks, in which two people stand in for another one."""
    people = random.sample(NAMES, 5)
    absent, stand_in, other, *_ = people
    days, shifts = ("Mon", "Tue", "Wed", "Thu", "Fri"), ("Early", "Late", "Night")
    begin = random.choice([1, 2])
    weeks = [f"Week {begin + place}" for place in range(3)]
    while True:
        rows: list[list[Cell]] = [
            [f"Week {week}", shift, *(random.choice(people) for _ in days)]
            for week in range(1, 5)
            for shift in shifts
        ]
        if 7 <= sum(row.count(absent) for row in rows if row[0] in weeks) <= 9:
            break
    counts = [[name, f"=COUNTIF(Rota!C2:G13,A{row})"] for row, name in enumerate(sorted(people), 2)]
    before = {
        "Rota": table(["Week", "Shift", *days], *rows),
        "Counts": table(["Person", "Shifts"], *counts),
    }
    wanted = copied(before)
    for row in wanted["Rota"][1:]:
        if row[0] in weeks:
            taken = other if row[1] == "Night" else stand_in
            row[2:] = [taken if cell == absent else cell for cell in row[2:]]
    return Work(
        f"{absent} is away from {weeks[0]} to {weeks[-1]}. In these three weeks, {other} takes the night shifts of {absent}, and "
        f"{stand_in} the early and late ones. Change the sheet Rota; the formulas of the sheet Counts stay.",
        before,
        wanted,
    )
