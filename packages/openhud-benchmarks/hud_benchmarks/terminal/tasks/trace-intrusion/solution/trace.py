"""Traces the intrusion."""

import json
import re
from pathlib import Path

LINE = re.compile(r'(\S+) - (\S+) \[12/Mar/2026:([\d:]+) \S+\] "(\S+) (\S+) \S+" (\d+) (\d+)')
entries = [LINE.match(line).groups() for line in Path("access.log").read_text().splitlines()]
failed: dict[str, int] = {}
for address, _, _, method, path, status, _ in entries:
    if (method, path, status) == ("POST", "/login", "401"):
        failed[address] = failed.get(address, 0) + 1
networks: dict[str, list[str]] = {}
for address in failed:
    networks.setdefault(address.rpartition(".")[0], []).append(address)
logged_in = {
    address for address, _, _, _, path, status, _ in entries if (path, status) == ("/login", "200")
}
# Others in the network of the guessers log in from time to time, they do not: only one of them ever came in.
guessers = min(
    networks.values(), key=lambda addresses: len(logged_in & set(addresses)) / len(addresses)
)
guessers.sort(key=lambda address: int(address.rpartition(".")[2]))
place, (_, account, entered, *_) = next(
    (place, entry)
    for place, entry in enumerate(entries)
    if entry[0] in guessers and entry[4:6] == ("/login", "200")
)
exported = [entry for entry in entries[place:] if entry[1] == account and "&token=" in entry[4]]
got_out = [entry for entry in exported if entry[5] == "200"]
report = {
    "guessers": guessers,
    "failed": sum(entry[0] in guessers and entry[5] == "401" for entry in entries[:place]),
    "account": account,
    "entered": f"2026-03-12T{entered}Z",
    "token": exported[0][4].rpartition("token=")[2],
    "exporter": exported[0][0],
    "reports": sorted(int(re.search(r"id=(\d+)", entry[4])[1]) for entry in got_out),
    "bytes": sum(int(entry[6]) for entry in got_out),
}
Path("incident.json").write_text(json.dumps(report))
