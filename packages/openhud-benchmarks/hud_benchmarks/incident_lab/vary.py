"""Variants of recorded incidents, to train on: what happened stays, every identifier is another.

    python -m hud_benchmarks.incident_lab.vary --source .lab --folder .lab/varied --count 20

A small policy learns to read identifiers only where it cannot learn them by heart. To judge by, use recordings.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud_benchmarks.incident_lab.lab.cluster import LETTERS
from hud_benchmarks.incident_lab.lab.recording import opened

HEX = "0123456789abcdef"
NUMBER = re.compile(r"([_-])\d{3}$")


def identifiers(database: sqlite3.Connection, luck: random.Random) -> Iterator[tuple[str, str]]:
    """Yield each identifier of a recording with another of its kind."""

    def some(letters: str, count: int) -> str:
        return "".join(luck.choices(letters, k=count))

    def column(query: str) -> list[str]:
        return [str(value) for (value,) in database.execute(query)]

    for pod in column("SELECT DISTINCT container FROM containers"):
        yield pod, f"{pod.split('-')[0]}-{some(LETTERS, 10)}-{some(LETTERS, 5)}"
    for release in column("SELECT DISTINCT release FROM deployments"):
        yield release, ".".join(str(luck.randint(1, 30)) for _ in range(3))
    for name in column("SELECT id FROM deployments"):
        yield name, f"dep-{some(HEX, 8)}"
    for serial in column("SELECT serial FROM certificates"):
        yield serial, some(HEX, 16)
    for issue in column("SELECT issue FROM issues"):
        yield issue, f"{issue.rpartition('-')[0]}-{some(HEX, 6).upper()}"
    for message in column("SELECT message FROM queue_messages"):
        for name in re.findall(r"msg-[0-9a-f]{10}", message):
            yield name, f"msg-{some(HEX, 10)}"
    named = [
        *column("SELECT flag FROM flags"),
        *column("SELECT DISTINCT substr(labels, 6) FROM metrics WHERE metric = 'memo_entries'"),
        *re.findall(r"\w+_idx_\d{3}", " ".join(column("SELECT statement FROM schema_migrations"))),
        *re.findall(r"/\* GET (\S+) \*/", " ".join(column("SELECT query FROM pg_stat_activity"))),
    ]
    for name in dict.fromkeys(named):
        yield name, NUMBER.sub(lambda match: f"{match[1]}{luck.randint(100, 999)}", name)


def vary(file: Path, entry: dict[str, Any], luck: random.Random) -> tuple[bytes, dict[str, Any]]:
    """Return a variant of a recording and of its entry in `findings.json`."""
    database = opened(file)
    others = dict(identifiers(database, luck))
    pattern = re.compile("|".join(map(re.escape, sorted(others, key=len, reverse=True))))

    def renamed(text: str) -> str:
        return pattern.sub(lambda match: others[match[0]], text)

    made = sqlite3.connect(":memory:")
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
        cursor = database.execute(f'SELECT * FROM "{table}"')
        columns = [column[0] for column in cursor.description]
        made.execute(
            f'CREATE TABLE "{table}" ({", ".join(f"{chr(34)}{c}{chr(34)}" for c in columns)})'
        )
        made.executemany(
            f'INSERT INTO "{table}" VALUES ({", ".join("?" for _ in columns)})',
            ([renamed(cell) if isinstance(cell, str) else cell for cell in row] for row in cursor),
        )
    made.commit()
    return made.serialize(), json.loads(renamed(json.dumps(entry)))


def main() -> None:
    """Read the command line and write the variants."""
    parser = argparse.ArgumentParser(description="Vary recorded incidents.")
    parser.add_argument("--source", type=Path, default=Path(".lab"))
    parser.add_argument("--folder", type=Path, default=Path(".lab/varied"))
    parser.add_argument("--count", type=int, default=20, help="variants of each incident")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    luck = random.Random(options.seed)
    findings = {}
    for name, entry in json.loads((options.source / "findings.json").read_text()).items():
        for number in range(options.count):
            variant, renamed = vary(options.source / f"{name}.sqlite.gz", entry, luck)
            findings[f"{name}-{number}"] = renamed
            (options.folder / f"{name}-{number}.sqlite.gz").write_bytes(gzip.compress(variant, 3))
    (options.folder / "findings.json").write_text(json.dumps(findings))
    print(f"{len(findings)} variants in {options.folder}")


if __name__ == "__main__":
    main()
