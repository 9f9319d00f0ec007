"""Record incidents: start the shop, break it, write down what is to be seen.

    python -m hud_benchmarks.incident_lab.record --folder .lab            the 24 incidents, one of each fault
    python -m hud_benchmarks.incident_lab.record --folder .lab --count 50 --seed 7
    python -m hud_benchmarks.incident_lab.record --folder .lab --only leak-orders

A folder of recordings holds `NAME.sqlite.gz` for each incident, and `findings.json`, which the tools never read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from hud_benchmarks.incident_lab.lab.cluster import LabError
from hud_benchmarks.incident_lab.lab.database import ShopDatabase, postgresql
from hud_benchmarks.incident_lab.lab.facts import facts
from hud_benchmarks.incident_lab.lab.faults import FAULTS
from hud_benchmarks.incident_lab.lab.stage import play_incident
from hud_benchmarks.incident_lab.solvable import problem

ATTEMPTS = 5
INTERRUPTED = 130


def wanted(options: argparse.Namespace) -> list[str]:
    """Return the names of the incidents to record: a fault, and a number after the first of its kind."""
    faults = [options.only] if options.only else list(FAULTS)
    count = options.count or len(faults)
    names = []
    for number in range(count):
        fault, again = faults[number % len(faults)], number // len(faults)
        names.append(fault if not again else f"{fault}-{again + 1}")
    return names


async def record(database: ShopDatabase, name: str, folder: Path, seed: int) -> None:
    """Record one incident into the folder, again where it makes no task."""
    fault = FAULTS[name if name in FAULTS else name.rpartition("-")[0]]
    file = folder / f"{name}.sqlite.gz"
    draft = file.with_suffix(".draft")
    for attempt in range(ATTEMPTS):
        unnoticed = None
        try:
            recording, finding = await play_incident(database, fault, f"{seed}/{name}/{attempt}")
        except* ValueError as error:
            unnoticed = error.exceptions[0]
        if unnoticed is not None:
            print(f"  {name}: {unnoticed}; again", flush=True)
            continue
        recording.save(draft)
        with recording.database() as made:
            by_area = facts(made)
        page = recording.rows["page"][0]["text"]
        wrong = problem(draft, page, finding, by_area)
        if wrong is None:
            break
        print(f"  {name}: {wrong}; again", flush=True)
    else:
        draft.unlink(missing_ok=True)
        raise SystemExit(f"Error: {name} could not be recorded in {ATTEMPTS} attempts.")
    known_file = folder / "findings.json"
    entries = json.loads(known_file.read_text()) if known_file.exists() else {}
    entries[name] = {
        "page": page,
        "service": finding.service,
        "cause": finding.cause,
        "culprit": finding.culprit,
        "facts": {
            area: {service: [fact.sign, fact.detail] for service, fact in by_service.items()}
            for area, by_service in by_area.items()
        },
    }
    known_file.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")
    draft.replace(file)


async def record_all(options: argparse.Namespace) -> None:
    """Record what is missing in the folder."""
    options.folder.mkdir(parents=True, exist_ok=True)
    names = wanted(options)
    missing = [
        name
        for name in names
        if options.fresh or not (options.folder / f"{name}.sqlite.gz").exists()
    ]
    print(f"{len(missing)} of {len(names)} incidents to record into {options.folder}", flush=True)
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="incident-lab-") as folder:
        os.chmod(folder, 0o755)
        with postgresql(Path(folder) / "postgresql") as database:
            for name in missing:
                began = perf_counter()
                await record(database, name, options.folder, options.seed)
                size = (options.folder / f"{name}.sqlite.gz").stat().st_size / 1024
                print(f"  {name}: {perf_counter() - began:.0f} s, {size:.0f} KiB", flush=True)


def main() -> int:
    """Read the command line and record."""
    parser = argparse.ArgumentParser(description="Record incidents of the lab's shop.")
    parser.add_argument("--folder", type=Path, default=Path(".lab"))
    parser.add_argument("--count", type=int, help="how many incidents (default: one of each fault)")
    parser.add_argument("--only", choices=list(FAULTS), help="incidents of this fault alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="record again what is there")
    # A polite kill ends the shop's processes too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parser.parse_args()
    code = 0
    try:
        asyncio.run(record_all(options))
    except* KeyboardInterrupt:
        print("Interrupted. The same command records what is missing.")
        code = INTERRUPTED
    except* LabError as failed:
        print(f"Error: {failed.exceptions[0]}", file=sys.stderr)
        code = 1
    if code == 0:
        print(
            f"INCIDENT_LAB={options.folder} python -m hud_benchmarks.incident_lab.compare oracle team"
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
