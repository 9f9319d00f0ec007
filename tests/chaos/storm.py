"""A storm: users at work, faults at random, and the ledger at the end.

    scripts/chaos postgresql --faults 200 --seed 1 --record tests/chaos/RESULTS.md

Prints each fault as it strikes, then a table of faults and what was promised and kept. `--record` puts the table into a
file, in place of the last one of the same store. Exit code 1 if anything is broken.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import psutil
from tests.chaos.faults import FAULTS, ON_POSTGRESQL, order
from tests.chaos.ledger import Ledger
from tests.chaos.scene import ENV, Scene
from tests.chaos.work import Completions, Evaluations, HostedRollouts, Trainings, Work

CALM_SECONDS = (0.5, 3.0)
"""Bounds of the time between two faults."""
CALM = "calm"
HEAD = """# Storms

The last run of `make chaos` on each store, written by `scripts/chaos --record`.
"""


@dataclass
class Report:
    """Result of a storm."""

    ledger: Ledger
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    seconds: float = 0.0

    def table(self) -> str:
        """Return the table of faults and promises, in Markdown."""
        rows = [f"| {name} | {count} |" for name, count in sorted(self.faults.items())]
        kept = self.ledger.shown()
        promises = [
            f"| rollouts submitted, each ended once with its reward, groups whole | {kept['rollouts']} |",
            f"| evaluations resumed to their end, each attempt once | {kept['evaluations']} |",
            f"| tool calls that returned, each recorded | {self.calls} |",
            f"| training runs with the weights of an undisturbed one, bit for bit | {kept['trainings']} |",
            f"| streams through the gateway | {json.dumps(kept['answers'])} |",
            f"| broken promises | {kept['broken']} |",
        ]
        head = ["| fault | times |", "|---|---|"]
        return "\n".join([*head, *rows, "", "| promise | count |", "|---|---|", *promises])


def storm(
    folder: Path,
    faults: int,
    seed: int,
    *,
    postgresql: bool,
    only: Collection[str] = (),
    say: Callable[[str], object] = print,
) -> Report:
    """Run a storm in a folder, and return what was found."""
    chance, ledger, began = random.Random(seed), Ledger(), time.monotonic()
    report = Report(ledger)
    ledger.calls = folder / "calls"
    ledger.calls.touch()
    with ExitStack() as stack:
        scene = stack.enter_context(Scene(folder))
        tasks = ENV + '\ntasks = [many(letter=letter) for letter in "aeot"]\n'
        (scene.sources / "train_tasks.py").write_text(tasks)
        trainings = Trainings(scene, ledger)
        trainings.train(CALM)
        ledger.trained.clear()
        rollouts = HostedRollouts(scene, ledger, seed)
        work: list[Work] = [
            rollouts,
            Evaluations(scene, ledger),
            trainings,
            Completions(scene, ledger),
        ]
        for one in work:
            one.start()
        try:
            for number, (name, strike) in enumerate(
                order(chance, faults, postgresql=postgresql, only=only), start=1
            ):
                time.sleep(chance.uniform(*CALM_SECONDS))
                say(f"{time.monotonic() - began:6.1f} s  {number:3d}  {name}")
                try:
                    strike(scene, chance)
                    scene.wait_until_up()
                except AssertionError as error:
                    ledger.complain(f"After fault {number}, {name}: {error}")
                report.faults[name] += 1
        finally:
            for one in work:
                one.stop.set()
        for one in work:
            one.join(600)
            if one.is_alive():
                ledger.complain(
                    f"{type(one).__name__} does not end within ten minutes of the storm."
                )
        rollouts.finish()
        say(f"{time.monotonic() - began:6.1f} s       checking")
        with scene.server.client() as api:
            ledger.check_rollouts(api)
            ledger.check_evaluations(api)
            report.calls = ledger.check_calls(api)
            ledger.check_weights(api, scene.home, CALM)
            ledger.check_settled(api)
    left = [one.cmdline() for one in _processes_of(folder)]
    if left:
        ledger.complain(f"Processes are left behind: {left}")
    report.seconds = time.monotonic() - began
    return report


def main() -> None:
    """Run a storm from the command line."""
    parser = argparse.ArgumentParser(
        description="Strike a platform at work, and check what it promised."
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--record", type=Path, help="Markdown file with the last table of each store"
    )
    parser.add_argument("--only", action="append", default=[], choices=[*FAULTS, *ON_POSTGRESQL])
    given = parser.parse_args()
    from tests.conftest import DATABASE

    with tempfile.TemporaryDirectory(prefix="hud-chaos-") as folder:
        report = storm(
            Path(folder),
            given.faults,
            given.seed,
            postgresql=DATABASE is not None,
            only=given.only,
        )
    store = "SQLite" if DATABASE is None else "PostgreSQL"
    struck = f"{report.faults.total()} faults, seed {given.seed}, {report.seconds:.0f} s"
    broken = "".join(f"\n\nbroken: {sentence}" for sentence in report.ledger.broken)
    said = f"{date.today()}, {struck}\n\n{report.table()}{broken}\n"
    print(f"\n{store}: {said}")
    if given.record is not None:
        record(given.record, store, said)
    sys.exit(1 if report.ledger.broken else 0)


def record(file: Path, store: str, said: str) -> None:
    """Put a store's section into the file of the last storms."""
    text = file.read_text() if file.exists() else HEAD
    head, *sections = text.split("\n## ")
    found = dict(section.split("\n", 1) for section in sections)
    found[store] = f"\n{said}"
    parts = [f"\n## {name}\n{found[name].rstrip()}\n" for name in sorted(found, reverse=True)]
    file.write_text(head.rstrip() + "\n" + "".join(parts))


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes whose home is in a folder, ten seconds after they should have ended."""
    until = time.monotonic() + 10.0
    while True:
        found = []
        for one in psutil.process_iter(["environ"]):
            home = (one.info["environ"] or {}).get("HUD_HOME", "")
            if home.startswith(str(folder)):
                found.append(one)
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.3)


if __name__ == "__main__":
    main()
