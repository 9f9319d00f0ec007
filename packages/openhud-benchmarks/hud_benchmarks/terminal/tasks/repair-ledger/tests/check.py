"""Compiles the agent's ledger.c, and compares it with this implementation of the same commands."""

import random
import shutil
import subprocess
import tempfile
from pathlib import Path

from confined import hide_tests, output_of, write_reward


class Ledger:
    """The commands as the instruction describes them."""

    def __init__(self) -> None:
        self.cents: dict[str, int] = {}

    def answer(self, line: str) -> str:
        match line.split():
            case []:
                return ""
            case ["show", name] if name in self.cents:
                return f"{self._dollars(name)}\n"
            case ["list"]:
                return "".join(f"{name} {self._dollars(name)}\n" for name in sorted(self.cents))
            case [command, *words]:
                return "ok\n" if self._done(command, words) else "error\n"
        raise AssertionError(line)

    def _done(self, command: str, words: list[str]) -> bool:
        match command, words:
            case "open", [name] if name not in self.cents and len(name) <= 31:
                self.cents[name] = 0
            case "put", [name, amount] if name in self.cents and self._cents(amount):
                self.cents[name] += self._cents(amount)
            case "move", [source, target, amount] if self._may(source, target, amount):
                self.cents[source] -= self._cents(amount)
                self.cents[target] += self._cents(amount)
            case _:
                return False
        return True

    def _may(self, source: str, target: str, amount: str) -> bool:
        both = source in self.cents and target in self.cents and source != target
        return both and 0 < self._cents(amount) <= self.cents[source]

    def _cents(self, amount: str) -> int:
        """Return an amount; 0 for anything that is none."""
        right = amount.isascii() and amount.isdigit() and len(amount.lstrip("0")) <= 16
        return int(amount) if right and int(amount) <= 10**15 else 0

    def _dollars(self, name: str) -> str:
        return f"{self.cents[name] // 100}.{self.cents[name] % 100:02d}"


def sessions() -> list[list[str]]:
    draw = random.Random()
    made = [
        ["list", "", "show x", "open", "open a b", "nonsense", "open a", "open a", "list all"],
        ["open " + "n" * 31, "open " + "m" * 32, "put " + "n" * 31 + " 7", "list"],
        [
            "open a",
            "put a 1000000000000000",
            "put a 1000000000000000",
            "show a",
            "put a 1000000000000001",
            "show a",
        ],
        [
            "open a",
            "open b",
            "put a 5x",
            "put a -5",
            "put a 0",
            "put a 1.5",
            "move a a 1",
            "put a 9",
            "move a a 1",
            "move a b 10",
            "list",
        ],
    ]
    names = [f"acct{number}" for number in range(3000)]
    draw.shuffle(names)
    made.append(
        [f"open {name}" for name in names]
        + [f"put {name} {draw.randint(1, 10**9)}" for name in names]
        + ["list"]
    )
    for _ in range(30):
        few = [*draw.sample(names, 6), "ab", "abc", "a"]
        made.append([_command(draw, few) for _ in range(120)])
    return made


def _command(draw: random.Random, names: list[str]) -> str:
    amount = draw.choice([draw.randint(1, 500), draw.randint(1, 10**13)])
    return draw.choice(
        [
            f"open {draw.choice(names)}",
            f"put {draw.choice(names)} {amount}",
            f"put {draw.choice(names)} {amount}",
            f"move {draw.choice(names)} {draw.choice(names)} {amount}",
            f"show {draw.choice(names)}",
            "list",
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        source, program = Path(folder) / "ledger.c", Path(folder) / "ledger"
        if Path("/app/ledger.c").is_file() and not Path("/app/ledger.c").is_symlink():
            shutil.copy("/app/ledger.c", source)
        hide_tests()  # The source could include them.
        command = ["cc", "-std=c11", "-O2", "-o", str(program), str(source)]
        made = subprocess.run(command, capture_output=True, timeout=60).returncode == 0
        right = made and all(_agrees(str(program), lines) for lines in sessions())
    write_reward(float(right))


def _agrees(program: str, lines: list[str]) -> bool:
    ledger = Ledger()
    return output_of([program], "".join(f"{line}\n" for line in lines)) == "".join(
        map(ledger.answer, lines)
    )


main()
