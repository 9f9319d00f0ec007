"""Compares the converted ledger, and its totals, with the right ones."""

import json
from pathlib import Path

WANTED = json.loads(Path("/tests/wanted.json").read_text())


def read(path: str) -> str:
    place = Path(path)
    if place.is_symlink() or not place.is_file() or place.stat().st_size > 1_000_000:
        raise ValueError(path)
    return place.read_text()


def exact(value: object) -> str:
    """Return a JSON value as text in which true is not 1, and the order of keys does not count."""
    return json.dumps(value, sort_keys=True)


def main() -> float:
    totals: dict[str, int] = {}
    for account in WANTED:
        if not account["closed"]:
            totals[account["region"]] = totals.get(account["region"], 0) + account["balance_cents"]
    try:
        lines = [
            json.loads(line) for line in read("/app/ledger.jsonl").splitlines() if line.strip()
        ]
        for line in lines:
            line["rate_percent"] = float(line["rate_percent"])
        right = exact(lines) == exact(WANTED)
        return float(right and exact(json.loads(read("/app/totals.json"))) == exact(totals))
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        return 0.0


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
