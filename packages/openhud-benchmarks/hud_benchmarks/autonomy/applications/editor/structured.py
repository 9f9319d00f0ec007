"""Edits of structured text: a price list, a configuration, an address list, a program."""

from __future__ import annotations

from random import Random

from hud_benchmarks.autonomy.applications.editor.document import Edit

_GOODS = [
    "anvil",
    "bucket",
    "chisel",
    "drill",
    "easel",
    "funnel",
    "gasket",
    "hammer",
    "jack",
    "kettle",
    "lamp",
    "mallet",
    "nozzle",
    "pliers",
    "rasp",
]
_PEOPLE = [
    "Adams",
    "Baker",
    "Clark",
    "Davis",
    "Evans",
    "Frank",
    "Ghosh",
    "Hills",
    "Irwin",
    "Jones",
    "Kumar",
    "Lopez",
    "Mason",
    "Novak",
    "Ortiz",
    "Patel",
    "Quinn",
    "Reyes",
]


def prices(random: Random) -> Edit:
    """A table of fixed width with corrections in a file of their own."""
    numbers = sorted(random.sample(range(100, 400), 15))
    articles = {
        number: (name, random.randint(100, 9900), random.randint(1, 60))
        for number, name in zip(numbers, _GOODS, strict=True)
    }
    added = numbers.pop(random.randrange(3, 12))
    before = {number: articles[number] for number in numbers}
    wanted = dict(articles)
    corrections = []
    picked = random.sample(numbers, 8)
    for number in picked[:4]:
        name, _, stock = wanted[number]
        wanted[number] = name, random.randint(100, 9900), stock
        corrections.append(f"{number} {name}: the price is {wanted[number][1] / 100:.2f}.")
    for number in picked[4:6]:
        name, price, _ = wanted[number]
        wanted[number] = name, price, random.randint(61, 99)
        corrections.append(f"{number} {name}: there are {wanted[number][2]}.")
    corrections += [f"{number} {wanted.pop(number)[0]}: no longer sold." for number in picked[6:]]
    name, price, stock = articles[added]
    corrections.append(f"{added} {name}: new, {price / 100:.2f}, {stock} in stock.")
    random.shuffle(corrections)

    def table(rows: dict[int, tuple[str, int, int]]) -> str:
        lines = [f"{'No.':<6}{'Article':<12}{'Price':>8}{'Stock':>8}", "-" * 34]
        for number, (name, price, stock) in sorted(rows.items()):
            lines.append(f"{number:<6}{name:<12}{price / 100:>8.2f}{stock:>8}")
        total = sum(stock for _, _, stock in rows.values())
        return "\n".join([*lines, "-" * 34, f"{f'{len(rows)} articles':<26}{total:>8}", ""])

    return Edit(
        "Apply corrections.txt to the price list. It stays sorted by number and its columns stay aligned as they are, and "
        "its last line says how many articles there are and how many pieces are in stock in all.",
        table(before),
        table(wanted),
        {"corrections.txt": "\n".join(corrections) + "\n"},
    )


def configuration(random: Random) -> Edit:
    """An INI file with the same keys in several sections."""
    sections = random.sample(
        ["mail", "web", "search", "queue", "cache", "billing", "reports", "auth"], 7
    )
    keys = ["port", "workers", "timeout", "retries", "log_level"]
    values = {
        section: {
            key: random.choice(["info", "debug"])
            if key == "log_level"
            else str(random.randint(2, 90))
            for key in keys
        }
        for section in sections
    }
    wanted = {
        section: {key: f"{key} = {value}" for key, value in values[section].items()}
        for section in sections
    }
    before = {section: dict(lines) for section, lines in wanted.items()}
    requests = []
    for section in random.sample(sections, 4):
        key = random.choice(keys[:4])
        value = random.randint(100, 999)
        wanted[section][key] = f"{key} = {value}"
        requests.append(f"in {section}, {key} becomes {value}")
    off, gone, first = random.sample(sections, 3)
    wanted[off] = {key: f"# {line}" for key, line in wanted[off].items()}
    requests.append(f"every setting of {off} is commented out, with `# ` before it")
    for section, lines in wanted.items():
        if section != off and values[section]["log_level"] == "debug":
            lines["log_level"] = "log_level = warning"
    requests.append(
        "every log_level that is debug becomes warning, except where it is commented out"
    )
    requests.append(f"the section {gone} is removed")
    requests.append(f"the section {first} is moved to the beginning")
    order = [first, *(section for section in sections if section not in (first, gone))]

    def written(names: list[str], lines: dict[str, dict[str, str]]) -> str:
        return "\n".join("\n".join([f"[{name}]", *lines[name].values(), ""]) for name in names)

    return Edit(
        f"Change the configuration: {'; '.join(requests)}. One empty line stays between sections.",
        written(sections, before),
        written(order, wanted),
    )


def addresses(random: Random) -> Edit:
    """An address list, sorted by name, with people who come, leave and move."""
    people = sorted(random.sample(_PEOPLE, 14))
    rooms = {name: f"{random.choice('ABC')}{random.randint(100, 399)}" for name in people}
    phones = {name: f"55-{random.randint(1000, 9999)}" for name in people}
    units = {name: random.choice(["Sales", "Stores", "Works"]) for name in people}
    new, leaving, moving = (list(part) for part in (people[2::6], people[3::6], people[1::5]))
    moving = [name for name in moving if name not in new and name not in leaving]
    unit = random.choice(["Sales", "Stores", "Works"])

    def entry(name: str) -> str:
        return f"{name}\n  Room:  {rooms[name]}\n  Phone: {phones[name]}\n  Unit:  {units[name]}\n"

    before = "\n".join(entry(name) for name in people if name not in new)
    requests = []
    for name in moving:
        rooms[name] = f"D{random.randint(100, 399)}"
        requests.append(f"{name} moves to room {rooms[name]}.")
    requests += [f"{name} leaves and is deleted." for name in leaving]
    requests.append(
        f"All phones of the unit {unit}, also of those who come, begin with 77- in place of 55-."
    )
    for name in new:
        requests.append(
            f"{name} comes: room {rooms[name]}, phone {phones[name]}, unit {units[name]}."
        )
    for name in people:
        if units[name] == unit:
            phones[name] = f"77{phones[name][2:]}"
    return Edit(
        f"Bring the address list up to date; it stays sorted, with an empty line between entries. {' '.join(requests)}",
        before,
        "\n".join(entry(name) for name in people if name not in leaving),
    )


def program(random: Random) -> Edit:
    """A Python module: a function renamed, another moved, lines for debugging deleted."""
    names = [
        f"{act}_{thing}"
        for act, thing in zip(
            random.sample(["load", "save", "count", "check", "merge", "split"], 6),
            random.sample(_GOODS, 6),
            strict=True,
        )
    ]
    renamed, moved = random.sample(names[1:], 2)
    better = f"{renamed}_once"
    constant = random.randint(10, 90)
    bodies = {}
    for name in names:
        callee = renamed if name != renamed else names[0]
        lines = [f"def {name}(items):", f'    """Do not confuse with {renamed} of version 1."""']
        if random.random() < 0.7:
            lines.append(f'    print("debug", "{name}", items)')
        lines += ["    result = []", "    for item in items:", f"        if item > {constant}:"]
        lines += [f"            result.append({callee}([item]))", "    return result", ""]
        bodies[name] = lines

    def edited(line: str) -> str:
        return line.replace(f"{renamed}(", f"{better}(")

    wanted = {
        name: [
            edited(line).replace(str(constant), "LIMIT") for line in lines if "debug" not in line
        ]
        for name, lines in bodies.items()
    }
    order = [*(name for name in names if name != moved), moved]
    head = '"""Goods of the store."""'
    return Edit(
        f"Edit the program: rename the function {renamed} to {better}, where it is defined and where it is called, and not "
        f"in the documentation strings; delete every line that prints for debugging; add the line `LIMIT = {constant}` and "
        f"an empty line before the first function, and use LIMIT wherever {constant} stands; move the function {moved} to the "
        "end of the file. One empty line stays between functions.",
        "\n".join([head, "", *(line for name in names for line in bodies[name])]),
        "\n".join(
            [
                head,
                "",
                f"LIMIT = {constant}",
                "",
                *(line for name in order for line in wanted[name]),
            ]
        ),
    )
