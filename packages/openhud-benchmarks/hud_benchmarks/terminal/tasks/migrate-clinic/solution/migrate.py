"""Moves the visits into the new schema."""

import re
import sqlite3
from pathlib import Path

old, new = sqlite3.connect(":memory:"), sqlite3.connect("new.db")
old.executescript(Path("old.sql").read_text())
new.executescript(Path("schema.sql").read_text())


def id_of(table: str, **values: str) -> int:
    """Return the id of a row, which is added where it is missing."""
    where = " AND ".join(f"{name} = ?" for name in values)
    row = new.execute(f"SELECT id FROM {table} WHERE {where}", list(values.values())).fetchone()
    if row:
        return row[0]
    marks = ", ".join("?" for _ in values)
    return new.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values())
    ).lastrowid


for number, patient, born, phone, doctor, day, drugs, fee in old.execute(
    "SELECT * FROM visits ORDER BY id"
):
    who = id_of("patients", name=patient, born=born, phone=re.sub(r"\D", "", phone))
    by = id_of("doctors", name="Dr. " + doctor.strip()[4:].title())
    date = "-".join(reversed(day.split(".")))
    cents = round(float(fee.replace(",", ".")) * 100)
    new.execute("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", (number, who, by, date, cents))
    for drug in {part.strip() for part in drugs.split(";")} - {""}:
        new.execute("INSERT INTO prescriptions VALUES (?, ?)", (number, id_of("drugs", name=drug)))
new.commit()
