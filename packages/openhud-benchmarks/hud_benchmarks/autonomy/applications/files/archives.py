"""Chores of archives: reports by quarter, logs of several hosts, a restore from backups."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from random import Random

from hud_benchmarks.autonomy.applications.files.chore import NAMES, WORDS, Chore, ChoreKind
from hud_benchmarks.autonomy.applications.files.tree import Tree


def _reports(random: Random) -> Chore:
    before = Tree()
    months = [f"{2022 + number // 12}-{number % 12 + 1:02}" for number in range(6, 21)]
    for month in months:
        for name in random.sample(["sales", "stock", "staff", "costs"], random.randint(2, 3)):
            before.put(f"{month}/{name}.csv", f"{name},{month}\n{random.randint(100, 999)},1\n")
    held = sorted(random.sample([path for path in before if path.endswith(".csv")], 5))
    before.put("hold.txt", "".join(f"{path}\n" for path in held))
    before = before.begun()
    wanted = Tree(before)
    quarters: dict[str, dict[str, str]] = {}
    for path in [path for path in before if path.endswith(".csv")]:
        month = path.split("/")[0]
        if month < "2023-07" and path not in held:
            quarter = f"{month[:4]}-Q{(int(month[5:]) + 2) // 3}"
            quarters.setdefault(quarter, {})[path] = before.text(path)
            del wanted[path]
    for month in months:
        if not any(path.startswith(f"{month}/") for path in wanted):
            wanted.remove(month)
    for quarter, members in quarters.items():
        wanted.archive(f"archive/{quarter}.tar.gz", members)
    return Chore(
        "Archive the reports of each quarter before July 2023: all of a quarter go into `archive/YYYY-QN.tar.gz` "
        "(such as `2022-Q3`), under the paths that they have here (`2022-07/sales.csv`), and are deleted here, as are the "
        "months' folders that become empty. Reports that `hold.txt` names are neither archived nor deleted.",
        before,
        wanted,
    )


REPORTS = ChoreKind(
    _reports,
    r"""
ls *; cat hold.txt

mkdir archive

quarter() {
  find "${@:2}" -name '*.csv' | grep -vxFf hold.txt | LC_ALL=C sort > /tmp/quarter.txt
  tar -czf "archive/$1.tar.gz" -T /tmp/quarter.txt && xargs rm -- < /tmp/quarter.txt
}

quarter 2022-Q3 2022-07 2022-08 2022-09

quarter 2022-Q4 2022-10 2022-11 2022-12

quarter 2023-Q1 2023-01 2023-02 2023-03

quarter 2023-Q2 2023-04 2023-05 2023-06

find 20* -type d -empty -delete

for archive in archive/*; do echo "$archive"; tar -tzf "$archive"; done

ls *
""",
)


def _logs(random: Random) -> Chore:
    before = Tree()
    start = datetime(2024, 5, 3, 8, tzinfo=UTC)
    merged, counts = [], []
    for host in sorted(random.sample(WORDS, 4)):
        tally = {"ERROR": 0, "WARN": 0}
        files: dict[str, str] = {"app.log.1": "", "app.log": ""}
        times = sorted(random.sample(range(40_000), 60))
        for number, second in enumerate(times):
            level = random.choice(["DEBUG", "INFO", "INFO", "WARN", "ERROR"])
            moment = start + timedelta(seconds=second, microseconds=random.randrange(1_000_000))
            line = f"{moment:%Y-%m-%dT%H:%M:%S.%fZ} {level} {random.choice(WORDS)} {number}"
            files["app.log.1" if number < 30 else "app.log"] += f"{line}\n"
            if level in tally:
                tally[level] += 1
                merged.append((line, f"{line.split()[0]} {host} {line.split(' ', 1)[1]}\n"))
        counts.append(f"{host} {tally['ERROR']} {tally['WARN']}\n")
        before.archive(f"{host}.tar.gz", {f"var/log/{name}": text for name, text in files.items()})
    before = before.begun()
    wanted = Tree(before)
    wanted.put("merged.log", "".join(line for _, line in sorted(merged)))
    wanted.put("counts.txt", "".join(counts))
    return Chore(
        "Each archive holds the logs of the host that it is named after: `app.log` and the older `app.log.1`. Write "
        "`merged.log` with the lines of all hosts whose level is WARN or ERROR, in the order of time, with the name of the "
        "host as a further word after the time. Write `counts.txt` with a line `HOST ERRORS WARNINGS` for each host, "
        "sorted by host. The archives stay, and nothing that was unpacked is left here.",
        before,
        wanted,
    )


LOGS = ChoreKind(
    _logs,
    r"""
for archive in *.tar.gz; do tar -tzf "$archive"; done

for archive in *.tar.gz; do
  host=${archive%.tar.gz}; mkdir -p /tmp/logs/$host && tar -xzf "$archive" -C /tmp/logs/$host
done

head -n 3 /tmp/logs/*/var/log/app.log

for host in $(ls /tmp/logs); do
  cat /tmp/logs/$host/var/log/app.log.1 /tmp/logs/$host/var/log/app.log | awk -v host="$host" \
    '$2 == "WARN" || $2 == "ERROR" { $1 = $1 " " host; print }'
done | LC_ALL=C sort > merged.log

for host in $(ls /tmp/logs); do
  echo "$host $(grep -c "^[^ ]* $host ERROR " merged.log) $(grep -c "^[^ ]* $host WARN " merged.log)"
done > counts.txt

head merged.log; cat counts.txt

rm -r /tmp/logs
""",
)


def _backups(random: Random) -> Chore:
    before = Tree()
    names = [f"{name}.csv" for name in random.sample(NAMES, 16)]
    contents = {name: f"{name}\n{random.getrandbits(64):016x}\n" for name in names}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()}
    before.put("MANIFEST", "".join(f"{sums[name]}  data/{name}\n" for name in sorted(names)))
    damaged, lost = names[:8], names[6:8]
    days: dict[str, dict[str, str]] = {"monday": {}, "tuesday": {}, "wednesday": {}}
    for name in names:
        good = set() if name in lost else {random.choice(list(days))}
        for day, members in days.items():
            text = contents[name] if day in good else f"{name}\nbroken on {day}\n"
            members[f"data/{name}"] = text
    for day, members in days.items():
        before.archive(f"backups/{day}.tar.gz", members)
    for number, name in enumerate(names):
        if name not in damaged:
            before.put(f"data/{name}", contents[name])
        elif number % 3:
            before.put(f"data/{name}", f"{contents[name][:-5]}\n")
    strays = [f"{word}.tmp.csv" for word in random.sample(WORDS, 3)]
    for stray in strays:
        before.put(f"data/{stray}", f"{stray}\n")
    before = before.begun()
    wanted = Tree(before)
    for name in damaged:
        wanted.pop(f"data/{name}", None)
        if name not in lost:
            wanted.put(f"data/{name}", contents[name])
    for stray in strays:
        wanted.move(f"data/{stray}", f"strays/{stray}")
    wanted.put("lost.txt", "".join(f"data/{name}\n" for name in sorted(lost)))
    return Chore(
        "`MANIFEST` holds the SHA-256 sums of the files that belong into `data`. Restore each that is missing or has "
        "another sum from the one of the `backups` that holds it with the right sum. Where none does, delete the file "
        "from `data` and list it in `lost.txt` (`data/name.csv`, one a line, sorted). Move the files of `data` that the "
        "manifest does not name to `strays`.",
        before,
        wanted,
    )


BACKUPS = ChoreKind(
    _backups,
    r"""
cat MANIFEST; ls data backups

sha256sum -c MANIFEST 2>&1 | sed -n 's/: FAILED.*//p' | LC_ALL=C sort > /tmp/bad.txt

cat /tmp/bad.txt

for day in monday tuesday wednesday; do mkdir -p /tmp/$day; tar -xzf backups/$day.tar.gz -C /tmp/$day; done

for file in $(cat /tmp/bad.txt); do
  rm -f "$file"
  for day in monday tuesday wednesday; do
    sum=$(sha256sum < /tmp/$day/$file | cut -d' ' -f1)
    grep -qx "$sum  $file" MANIFEST && cp "/tmp/$day/$file" "$file"
  done
  [ -e "$file" ] || echo "$file"
done > lost.txt

cat lost.txt

mkdir strays
for file in data/*; do grep -q "  $file$" MANIFEST || mv -- "$file" strays/; done

ls data strays; sha256sum -c --quiet MANIFEST
""",
)
