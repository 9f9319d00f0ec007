"""Converts the ledger."""

import json
from collections import Counter

REGIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def unpacked(data: bytes) -> int:
    digits = data.hex()
    return int(digits[:-1]) * (-1 if digits[-1] == "d" else 1)


totals: Counter[str] = Counter()
with open("ledger.dat", "rb") as source, open("ledger.jsonl", "w", encoding="utf-8") as target:
    while record := source.read(46):
        day = unpacked(record[33:37]) + 19000000
        account = {
            "id": int(record[:8].decode("cp500")),
            "name": record[8:32].decode("cp500").rstrip(),
            "region": REGIONS[record[32:33].decode("cp500")],
            "opened": f"{day // 10000}-{day // 100 % 100:02d}-{day % 100:02d}",
            "balance_cents": unpacked(record[37:43]),
            "rate_percent": int.from_bytes(record[43:45], "big") / 100,
            "closed": record[45] == 0xFF,
        }
        target.write(json.dumps(account, ensure_ascii=False) + "\n")
        if not account["closed"]:
            totals[account["region"]] += account["balance_cents"]
with open("totals.json", "w") as target:
    json.dump(totals, target)
