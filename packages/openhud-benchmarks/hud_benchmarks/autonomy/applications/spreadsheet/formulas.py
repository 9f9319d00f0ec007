"""Works with formulas, which must follow when their inputs change."""

from __future__ import annotations

from random import Random

from hud_benchmarks.autonomy.applications.spreadsheet.tables import NAMES, REGIONS
from hud_benchmarks.autonomy.applications.spreadsheet.work import Work
from hud_benchmarks.autonomy.applications.spreadsheet.workbook import (
    Cell,
    address,
    copied,
    is_formula,
    table,
)

GOODS = (
    "anvil", "bucket", "chisel", "drill", "easel", "funnel", "gasket", "hammer", "jack", "kettle", "lamp", "mallet", "nozzle",
    "pliers", "rasp", "shovel",
)  # fmt: skip
FOLLOW = "Use formulas everywhere, so that the results follow when the numbers change, and round nothing."


def invoice(random: Random) -> Work:
    """Order lines with prices looked up, and the sums of the invoice."""
    items = random.sample(GOODS, 12)
    prices = table(["Item", "Price"], *((item, random.randint(2, 80)) for item in GOODS))
    lines: list[list[Cell]] = [[item, random.randint(1, 30)] for item in items]
    sums = table(
        ["Invoice", "Value"],
        ["Subtotal", None],
        ["Discount in percent", random.choice([2, 3, 5, 8])],
        ["Discount", None],
        ["Net", None],
        ["Tax in percent", random.choice([7, 19, 20])],
        ["Tax", None],
        ["Total", None],
    )
    head = ["Item", "Quantity", "Price", "Amount"]
    before = {"Orders": table(head, *lines), "Prices": prices, "Invoice": sums}
    wanted = copied(before)
    last = len(GOODS) + 1
    filled: list[list[Cell]] = [
        [item, quantity, f"=VLOOKUP(A{row},Prices!$A$2:$B${last},2,FALSE)", f"=B{row}*C{row}"]
        for row, (item, quantity) in enumerate(lines, 2)
    ]
    wanted["Orders"] = table(head, *filled)
    for row, formula in {
        2: "=SUM(Orders!D2:D13)", 4: "=B2*B3/100", 5: "=B2-B4", 7: "=B5*B6/100", 8: "=B5+B7",
    }.items():  # fmt: skip
        wanted["Invoice"][row - 1][1] = formula
    return Work(
        "Complete the invoice. On the sheet Orders, fill in the price of each item from the sheet Prices, and the amount: "
        "quantity times price. On the sheet Invoice, fill in the five empty values: the subtotal of all amounts; the discount "
        f"on it; net, the subtotal less the discount; the tax on net; and the total with tax. {FOLLOW}",
        before,
        wanted,
        ("Orders!B", "Prices!B", "Invoice!B"),
    )


def summary(random: Random) -> Work:
    """A list of sales, to be summed up by region and product."""
    products = sorted(random.sample(GOODS, 3))
    rows: list[list[Cell]] = [[random.choice(REGIONS), random.choice(products), random.randint(10, 900)] for _ in range(30)]  # fmt: skip
    rows += [
        [region, product, random.randint(10, 900)] for region in REGIONS for product in products
    ]
    random.shuffle(rows)
    last = len(rows) + 1
    region, product, amount = (f"Sales!${column}$2:${column}${last}" for column in "ABC")
    sums = [
        [name, *(f"=SUMIFS({amount},{region},$A{row},{product},{column}$1)" for column in "BCD"), f"=SUM(B{row}:D{row})"]
        for row, name in enumerate(REGIONS, 2)
    ]  # fmt: skip
    sums.append(["All", *(f"=SUM({column}2:{column}4)" for column in "BCDE")])
    shares = [
        [name, *(f"={column}{row}/$E$5*100" for column in "BCDE")]
        for row, name in enumerate(REGIONS, 2)
    ]
    orders = [
        [name, f"=COUNTIF({region},A{row})", f"=E{row - 13}/B{row}"]
        for row, name in enumerate(REGIONS, 15)
    ]
    filled = table(
        ["Amount", *products, "All"], *sums, [], [],
        ["Percent", *products, "All"], *shares, [], [],
        ["Sales", "Number", "Average"], *orders,
    )  # fmt: skip
    empty = [
        [None if is_formula(cell) else cell for cell in row] for row in copied({"": filled})[""]
    ]
    sales = table(["Region", "Product", "Amount"], *rows)
    return Work(
        "Sum up the sheet Sales on the sheet Summary, in its three tables: the amount of each region and product, with the "
        "sums of rows and columns; the same as a share of the amount of all, in percent (50 for a half); and the number of "
        f"sales of each region with the average amount of one. {FOLLOW}",
        {"Sales": sales, "Summary": empty},
        {"Sales": sales, "Summary": filled},
        ("Sales!C",),
    )


def grades(random: Random) -> Work:
    """Marks with weights, a scale of grades, ranks and statistics."""
    students: list[list[Cell]] = [[name, *(random.randint(20, 100) for _ in range(3))] for name in random.sample(NAMES, 12)]  # fmt: skip
    weights = random.sample([2, 3, 4, 5], 3)
    most = 100 * sum(weights)
    scale = table(
        ["Part", "Weight", None, "Points from", "Grade"],
        *(
            [part, weight, None, most * share // 100, grade]
            for part, weight, share, grade in zip(
                ("Essay", "Test", "Project", None, None),
                (*weights, None, None),
                (0, 45, 55, 65, 80),
                "FDCBA",
                strict=True,
            )
        ),
    )
    head = ["Name", "Essay", "Test", "Project", "Points", "Grade", "Rank"]
    labels = ["Average of points", "Most points", *(f"Number of {mark}" for mark in "ABCDF")]
    before = {
        "Marks": table(head, *students),
        "Scale": scale,
        "Statistics": table(["Statistics", "Value"], *([label] for label in labels)),
    }
    wanted = copied(before)
    for row, line in enumerate(wanted["Marks"][1:], 2):
        line[4:] = [
            f"=B{row}*Scale!$B$2+C{row}*Scale!$B$3+D{row}*Scale!$B$4",
            f"=VLOOKUP(E{row},Scale!$D$2:$E$6,2)",
            f"=RANK(E{row},$E$2:$E$13)",
        ]
    values = ["=AVERAGE(Marks!E2:E13)", "=MAX(Marks!E2:E13)", *(f'=COUNTIF(Marks!F2:F13,"{mark}")' for mark in "ABCDF")]  # fmt: skip
    for line, formula in zip(wanted["Statistics"][1:], values, strict=True):
        line[1] = formula
    return Work(
        "Grade the sheet Marks. Points: the sum of the three marks, each times the weight that the sheet Scale gives it. Grade: "
        "the one of the sheet Scale whose points are reached. Rank: 1 for the most points. Then fill in the values of the sheet "
        f"Statistics. {FOLLOW}",
        before,
        wanted,
        ("Marks!B", "Marks!C", "Marks!D", "Scale!B"),
    )  # fmt: skip


def stock(random: Random) -> Work:
    """Articles with movements in and out, and what must be ordered."""
    articles = random.sample(GOODS, 12)
    moves: list[list[Cell]] = [[random.choice(articles), random.choice(["in", "out"]), random.randint(1, 20)] for _ in range(34)]  # fmt: skip
    last = len(moves) + 1
    article, kind, pieces = (f"Movements!${column}$2:${column}${last}" for column in "ABC")
    begun: list[list[Cell]] = [
        [name, random.randint(20, 60), random.randint(15, 50)] for name in articles
    ]
    head = ["Article", "Opening", "Minimum", "In", "Out", "Now", "Order"]
    before = {
        "Stock": table(head, *begun, ["All"]),
        "Movements": table(["Article", "Kind", "Pieces"], *moves),
        "Report": table(["Report", "Value"], ["Articles to order"], ["Pieces to order"], ["Largest order"]),
    }  # fmt: skip
    wanted = copied(before)
    for row, line in enumerate(wanted["Stock"][1:-1], 2):
        line[3:] = [
            f'=SUMIFS({pieces},{article},A{row},{kind},"in")',
            f'=SUMIFS({pieces},{article},A{row},{kind},"out")',
            f"=B{row}+D{row}-E{row}",
            f"=IF(F{row}<C{row},2*C{row}-F{row},0)",
        ]
    wanted["Stock"][-1][1:] = [f"=SUM({column}2:{column}13)" for column in "BCDEFG"]
    report = ['=COUNTIF(Stock!G2:G13,">0")', "=Stock!G14", "=MAX(Stock!G2:G13)"]
    for line, formula in zip(wanted["Report"][1:], report, strict=True):
        line[1] = formula
    return Work(
        "Take stock. On the sheet Stock, fill in for each article the pieces that came in and went out by the sheet Movements; "
        "now, the opening with what came in and without what went out; and the order: where there is less now than the minimum, "
        "twice the minimum less what is there now, else 0. Fill in the sums of the row All, and the three values of the sheet "
        f"Report: how many articles must be ordered, how many pieces in all, and the largest order. {FOLLOW}",
        before,
        wanted,
        ("Stock!B", "Stock!C", "Movements!C"),
    )


def repair(random: Random) -> Work:
    """A budget in which some formulas are wrong."""
    posts = random.sample(
        ["Rent", "Wages", "Power", "Travel", "Repairs", "Licences", "Postage", "Training", "Insurance"], 8
    )  # fmt: skip
    months = ["M1", "M2", "M3", "M4", "M5", "M6"]
    lines: list[list[Cell]] = [
        [post, *(random.randint(100, 900) for _ in months), f"=SUM(B{row}:G{row})", f"=H{row}/6", f"=MAX(B{row}:G{row})"]
        for row, post in enumerate(posts, 2)
    ]  # fmt: skip
    total: list[Cell] = [
        "All",
        *(f"=SUM({column}2:{column}9)" for column in "BCDEFGH"),
        "=H10/6",
        None,
    ]
    right = {"Budget": table(["Post", *months, "Sum", "Average", "Most"], *lines, total)}
    wrong = copied(right)
    sheet = wrong["Budget"]
    short, number, average, least, other = random.sample(range(1, 9), 5)
    sheet[short][7] = f"=SUM(B{short + 1}:F{short + 1})"
    sheet[number][7] = random.randint(1000, 1900)
    sheet[average][8] = f"=H{average + 1}/5"
    sheet[least][9] = f"=MIN(B{least + 1}:G{least + 1})"
    beside = other % 8 + 2  # The row below, or the first after the last.
    sheet[other][9] = f"=MAX(B{beside}:G{beside})"
    first, two = random.sample(range(1, 7), 2)
    sheet[9][first] = f"=SUM({address(1, first)}:{address(7, first)})"
    sheet[9][two] = f"={'+'.join(address(row, two) for row in range(1, 9) if row != 4)}"
    return Work(
        "Seven formulas of the sheet Budget are wrong: a sum or a column's sum that leaves something out, a number in place of a "
        "formula, an average over another number of months than six, a least in place of the most, a row that is not its own. "
        "Find and repair them, with formulas. The numbers of the months are right.",
        wrong,
        right,
        tuple(f"Budget!{column}" for column in "BCDEFG"),
    )
