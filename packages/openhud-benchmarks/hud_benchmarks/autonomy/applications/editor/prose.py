"""Edits of prose: terms in some sections, an agenda in another order, a reviewer's comments, numbered notes."""

from __future__ import annotations

from random import Random

from hud_benchmarks.autonomy.applications.editor.document import Edit

_SUBJECTS = [
    "boilers",
    "pumps",
    "valves",
    "meters",
    "filters",
    "sensors",
    "panels",
    "cables",
    "motors",
    "switches",
    "gauges",
    "hoses",
]
_ACTS = [
    "inspect",
    "clean",
    "test",
    "replace",
    "record",
    "isolate",
    "label",
    "drain",
    "refill",
    "calibrate",
    "tighten",
    "store",
]
_WHEN = ["every week", "every month", "before winter", "after each shift", "twice a year"]
_TERMS = [("foreman", "supervisor"), ("depot", "warehouse")]


def _sentence(random: Random, term: str) -> str:
    act, thing = random.choice(_ACTS), random.choice(_SUBJECTS)
    return random.choice(
        [
            f"The {term} has to {act} the {thing} {random.choice(_WHEN)}.",
            f"Ask the {term} before you {act} the {thing}.",
            f"Notes on the {thing} go to the {term}.",
            f"The {thing} are not for the {term} to {act}.",
        ]
    )


def terms(random: Random) -> Edit:
    """One term becomes another, in some sections only."""
    old, new = random.choice(_TERMS)
    titles = random.sample(_SUBJECTS, 8)
    changed = sorted(random.sample(range(8), 4))
    before, wanted = ["MAINTENANCE HANDBOOK", ""], ["MAINTENANCE HANDBOOK", ""]
    for number, title in enumerate(titles):
        lines = [_sentence(random, old if place % 3 != 2 else "office") for place in range(5)]
        heading = f"{number + 1}. {title.title()}"
        before += [heading, *lines, ""]
        done = [line.replace(old, new) for line in lines] if number in changed else lines
        wanted += [heading, *done, ""]
    names = ", ".join(titles[number].title() for number in changed)
    return Edit(
        f"In the sections {names} of the handbook, write {new!r} in place of {old!r} everywhere. In the other sections "
        f"{old!r} stays.",
        "\n".join(before),
        "\n".join(wanted),
    )


def agenda(random: Random) -> Edit:
    """Items of an agenda in another order, with numbers and times that follow."""
    titles = [f"{thing.title()}" for thing in random.sample(_SUBJECTS, 7)]
    lengths = {title: random.choice([5, 10, 15, 20, 25]) for title in titles}
    speakers = {
        title: random.choice(["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]) for title in titles
    }
    order = random.sample(titles, 7)
    while order == titles:
        order = random.sample(titles, 7)

    def written(items: list[str]) -> str:
        minute, lines = 9 * 60, ["AGENDA OF THE MAINTENANCE MEETING", ""]
        for number, title in enumerate(items, 1):
            lines.append(f"{number}. {title} ({lengths[title]} minutes)")
            lines.append(f"   Start: {minute // 60:02}:{minute % 60:02}")
            lines += [f"   Speaker: {speakers[title]}", ""]
            minute += lengths[title]
        return "\n".join([*lines, f"End of the meeting: {minute // 60:02}:{minute % 60:02}", ""])

    return Edit(
        f"Put the items of the agenda into this order: {', '.join(order)}. Number them anew, and write the times at "
        "which they start: the first still at 09:00, each when the one before it ends.",
        written(titles),
        written(order),
    )


def review(random: Random) -> Edit:
    """A draft with the comments of a reviewer, in a file of their own."""
    paragraphs = [[_sentence(random, "office") for _ in range(4)] for _ in range(8)]
    for number, lines in enumerate(paragraphs, 1):
        lines[0] = f"On point {number}: {lines[0][0].lower()}{lines[0][1:]}"
    before = "\n\n".join("\n".join(lines) for lines in paragraphs) + "\n"
    wanted = [list(lines) for lines in paragraphs]
    comments = []
    for number in random.sample(range(8), 6):
        line = random.randrange(1, 4)
        act = random.choice(["replace", "delete", "insert"])
        if act == "replace":
            wanted[number][line] = _sentence(random, "engineer")
            comments.append(
                f"Paragraph {number + 1}, line {line + 1}: replace the line by: {wanted[number][line]}"
            )
        elif act == "delete":
            del wanted[number][line]
            comments.append(f"Paragraph {number + 1}, line {line + 1}: delete.")
        else:
            added = _sentence(random, "inspector")
            wanted[number].insert(line + 1, added)
            comments.append(f"Paragraph {number + 1}, after line {line + 1}: insert: {added}")
    first, other = random.sample(range(8), 2)
    wanted[first], wanted[other] = wanted[other], wanted[first]
    comments.append(f"At last, let paragraphs {first + 1} and {other + 1} change places.")
    return Edit(
        "Apply the comments of review.txt to the draft. Numbers of paragraphs and lines are those of the draft as it is now.",
        before,
        "\n\n".join("\n".join(lines) for lines in wanted) + "\n",
        {"review.txt": "\n".join(comments) + "\n"},
    )


def notes(random: Random) -> Edit:
    """Numbered notes, of which two are taken out and the others renumbered."""
    count = 12
    texts = [
        f"See the manual of the {random.choice(_SUBJECTS)}, page {random.randint(3, 90)}."
        for _ in range(count)
    ]
    out = sorted(random.sample(range(3, count - 1), 2))
    body = []
    for number in range(1, count + 1):
        again = [random.randint(1, number)] if random.random() < 0.3 else []
        body.append((_sentence(random, "office").rstrip("."), [number, *again]))

    def written(numbers: list[int]) -> str:
        new = {old: place for place, old in enumerate(numbers, 1)}
        lines = ["REPORT", ""]
        for words, marks in body:
            shown = " and ".join(f"[{new[mark]}]" for mark in marks if mark in new)
            lines.append(f"{words} {shown}".rstrip() + ".")
        listed = [f"[{new[number]}] {texts[number - 1]}" for number in numbers]
        return "\n".join([*lines, "", "NOTES", "", *listed, ""])

    dropped = " and ".join(f"[{number}]" for number in out)
    return Edit(
        f"Take the notes {dropped} out: their lines in the list of notes, and every mark in the text that refers to them. "
        "Where one of two marks with `and` between them goes, the `and` goes, too. Then number the notes that remain anew "
        "from [1] on, in the list and in the text.",
        written(list(range(1, count + 1))),
        written([number for number in range(1, count + 1) if number not in out]),
    )
