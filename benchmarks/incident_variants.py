"""The incidents of incident_lab_gains.py in one folder: variants of those that ship, to train on, and held-out ones."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

from hud_benchmarks import incident_lab
from hud_benchmarks.incident_lab.vary import vary

SHIPPED = Path(incident_lab.__file__).parent / "incidents"
HELD_OUT_PREFIX = "held-"


def write_incidents(
    held_out: Path, folder: Path, variants: int, limit: int | None, seed: int
) -> None:
    """Write variants of the incidents that ship into a folder, and the held-out ones as they are, at most `limit` of each.

    A variant has other identifiers, so that a policy reads them instead of learning them by heart.
    """
    folder.mkdir(parents=True)
    luck = random.Random(seed)
    findings = {}
    for name, entry in _entries(SHIPPED)[:limit]:
        for number in range(variants):
            variant, renamed = vary(SHIPPED / f"{name}.sqlite.gz", entry, luck)
            findings[f"{name}-{number}"] = renamed
            (folder / f"{name}-{number}.sqlite.gz").write_bytes(gzip.compress(variant, 3))
    for name, entry in _entries(held_out)[:limit]:
        slug = HELD_OUT_PREFIX + name
        findings[slug] = entry
        shutil.copy(held_out / f"{name}.sqlite.gz", folder / f"{slug}.sqlite.gz")
    (folder / "findings.json").write_text(json.dumps(findings))


def _entries(folder: Path) -> list[tuple[str, dict[str, str]]]:
    return list(json.loads((folder / "findings.json").read_text()).items())
