"""Compares the rows of the migrated database with those of the old dump."""

import re
import sqlite3
from pathlib import Path

DATABASE = Path("/app/new.db")
JOINED = """
SELECT visits.id, patients.name, patients.born, patients.phone, doctors.name, visits.day, visits.fee_cents,
    (SELECT group_concat(name, ';') FROM (
        SELECT drugs.name AS name FROM prescriptions JOIN drugs ON drugs.id = prescriptions.drug
        WHERE prescriptions.visit = visits.id ORDER BY drugs.name))
FROM visits JOIN patients ON patients.id = visits.patient JOIN doctors ON doctors.id = visits.doctor ORDER BY visits.id
"""
TABLES = ("patients", "doctors", "drugs", "visits", "prescriptions")


def wanted() -> tuple[list[tuple[object, ...]], list[int]]:
    """Return the rows of `JOINED`, and the number of rows of each table."""
    old = sqlite3.connect(":memory:")
    old.executescript(Path("/tests/old.sql").read_text())
    rows: list[tuple[object, ...]] = []
    for number, patient, born, phone, doctor, day, drugs, fee in old.execute(
        "SELECT * FROM visits ORDER BY id"
    ):
        taken = sorted({drug.strip() for drug in drugs.split(";")} - {""})
        dollars, _, rest = fee.replace(",", ".").partition(".")
        cents = int(dollars) * 100 + int(rest.ljust(2, "0"))
        day = "-".join(reversed(day.split(".")))
        rows.append(
            (
                number,
                patient,
                born,
                re.sub(r"\D", "", phone),
                f"Dr. {doctor.strip()[4:].title()}",
                day,
                cents,
                ";".join(taken) or None,
            )
        )
    distinct = [{row[1:3] for row in rows}, {row[4] for row in rows}]
    drugs = [str(row[7]).split(";") for row in rows if row[7]]
    counts = [
        *map(len, distinct),
        len({drug for visit in drugs for drug in visit}),
        len(rows),
        sum(map(len, drugs)),
    ]
    return rows, counts


def main() -> float:
    rows, counts = wanted()
    if DATABASE.is_symlink() or not DATABASE.is_file() or DATABASE.stat().st_size > 10_000_000:
        return 0.0
    plain = sqlite3.connect(":memory:")
    plain.executescript(Path("/tests/schema.sql").read_text())
    try:
        new = sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True)
        new.text_factory = lambda data: data.decode(errors="replace")
        described = "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        # Views and triggers of the agent's could answer in place of the tables.
        if [_bare(row) for row in new.execute(described)] != [
            _bare(row) for row in plain.execute(described)
        ]:
            return 0.0
        counted = [new.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]
        return float(new.execute(JOINED).fetchall() == rows and counted == counts)
    except (sqlite3.Error, ValueError):
        return 0.0


def _bare(row: tuple[str, str, str]) -> tuple[str, str, str]:
    return row[0], row[1], "".join(row[2].split()).lower()


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
