"""Compares the agent's package with the reference, call by call; the agent's runs in a process of its own."""

import json
import random
from pathlib import Path

import reference
from confined import hide_tests, output_of, write_reward

RUNNER = Path("/tests/runner.py").read_text()


def calls() -> list[tuple[str, list[object]]]:
    draw = random.Random()

    def span() -> str:
        start = draw.randrange(0, 288) * 5
        end = draw.randrange(0, 289) * 5
        return f"{start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"

    def spans(most: int) -> str:
        return ", ".join(span() for _ in range(draw.randint(1, most)))

    made: list[tuple[str, list[object]]] = [
        ("slots", ["09:00-10:00", "12:00-13:00", 30]),
        ("slots", ["09:00-10:00", "", 30]),
        ("slots", ["09:00-10:00", "  ", 60]),
        ("slots", ["09:00-10:30", "07:00-08:00", 30]),
        ("slots", ["08:00-13:00", "09:00-12:00, 10:00-10:30", 30]),
        ("slots", ["22:00-02:00", "23:30-00:30", 30]),
        ("slots", ["22:00-00:00", "", 60]),
        ("slots", ["09:00-10:00", "", 0]),
        ("slots", ["09:00-10:00", "", -5]),
        ("parse", ["9:00-24:00"]),
    ]
    nonsense = [
        "09:00-12:00pm",
        "09:75-10:00",
        "25:00-26:00",
        "09:00-09:00",
        "24:05-24:10",
        "x",
        "9:00,,",
    ]
    made += [("parse", [text]) for text in nonsense]
    made += [
        ("slots", [spans(3), draw.choice(["", spans(4)]), draw.choice([5, 15, 20, 45])])
        for _ in range(300)
    ]
    return made


def expected(name: str, arguments: list[object]) -> object:
    try:
        return [str(part) for part in getattr(reference, name)(*arguments)]
    except ValueError:
        return "ValueError"


def main() -> float:
    made = calls()
    wanted = [expected(name, arguments) for name, arguments in made]
    hide_tests()
    command = ["/usr/bin/python3", "-E", "-s", "-B", "-c", RUNNER]
    answered = output_of(command, json.dumps(made), seconds=30)
    try:
        return float(answered is not None and json.loads(answered) == wanted)
    except (ValueError, RecursionError):
        return 0.0


write_reward(main())
