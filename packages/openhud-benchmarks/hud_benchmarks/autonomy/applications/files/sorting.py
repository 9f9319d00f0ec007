"""Chores of names and places: memos, pictures, scans, releases."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from hud_benchmarks.autonomy.applications.files.chore import NAMES, WORDS, Chore, ChoreKind
from hud_benchmarks.autonomy.applications.files.tree import Tree

_PROJECTS = {
    "Northern Line": "nl",
    "Harbour Wall": "hw",
    "Old Mill": "om",
    "Station Roof": "sr",
    "West Tunnel": "wt",
}


def _memos(random: Random) -> Chore:
    before = Tree()
    codes = {name: f"{code}{random.randint(10, 99)}" for name, code in _PROJECTS.items()}
    listed = "".join(f"{name}\t{code}\n" for name, code in codes.items())
    before.put("projects.tsv", f"project\tcode\n{listed}")
    filed = {}
    for word in random.sample(WORDS, 24):
        project, status = (
            random.choice(list(codes)),
            random.choice(["final"] * 4 + ["draft", "void"]),
        )
        day = date(2022, 1, 1) + timedelta(random.randrange(1000))
        lines = [f"Project: {project}", f"Date: {day.day} {day:%B %Y}", f"Status: {status}"]
        random.shuffle(lines)
        path = f"inbox/{word}.txt"
        before.put(path, "\n".join([f"Subject: {word}", *lines, "", f"On the {word}."]) + "\n")
        filed[path] = (status, f"{codes[project]}/{day.year}/{day:%Y-%m-%d}-{word}.txt")
    before = before.begun()
    wanted = Tree(before)
    for path, (status, target) in filed.items():
        if status == "final":
            wanted.move(path, target)
        elif status == "void":
            wanted.remove(path)
    return Chore(
        "File the memos of `inbox` by the lines at their head. A memo whose status is final becomes "
        "`CODE/YEAR/YYYY-MM-DD-NAME`, where CODE is its project's in `projects.tsv`, the date is the memo's, and NAME is "
        "the name of the file. A memo whose status is void is deleted, and a draft stays where it is.",
        before,
        wanted,
    )


MEMOS = ChoreKind(
    _memos,
    r"""
head -n 5 inbox/*.txt

cat projects.tsv

grep -lx 'Status: void' inbox/*.txt | xargs -r rm --

while IFS=$'\t' read -r project code; do
  for memo in $(grep -lx 'Status: final' inbox/*.txt); do
    grep -qx "Project: $project" "$memo" || continue
    day=$(date -d "$(sed -n 's/^Date: //p' "$memo")" +%F)
    mkdir -p "$code/${day%%-*}" && mv -- "$memo" "$code/${day%%-*}/$day-$(basename "$memo")"
  done
done < projects.tsv

ls inbox
""",
)


def _pictures(random: Random) -> Chore:
    before = Tree()
    albums = random.sample(WORDS, 5)
    before.put("ranking.txt", "".join(f"{album}\n" for album in albums))
    copies: dict[str, list[str]] = {}
    for number in range(16):
        content = f"picture {number} {random.getrandbits(64):016x}\n"
        for _ in range(random.choice([1, 1, 2, 3])):
            name = f"IMG_{random.randint(1000, 9999)}.jpg"
            path = f"{random.choice(albums)}/{name}"
            if path not in before:
                before.put(path, content)
                copies.setdefault(content, []).append(path)
    for album in albums:
        before.folder(album)
    before = before.begun()
    wanted = Tree(before)
    deleted = []
    for paths in copies.values():
        paths.sort(key=lambda path: (albums.index(path.split("/")[0]), path))
        deleted += paths[1:]
    for path in deleted:
        wanted.remove(path)
    wanted.put("deleted.txt", "".join(f"{path}\n" for path in sorted(deleted)))
    return Chore(
        "The folders are albums, and some pictures are in there several times, under different names, with the same "
        "content. Keep one of each: the one in the album that stands first in `ranking.txt`, and in one album the one whose "
        "name sorts first. Delete the others, and list them in `deleted.txt`, one path a line (`album/name.jpg`), sorted.",
        before,
        wanted,
    )


PICTURES = ChoreKind(
    _pictures,
    r"""
cat ranking.txt; ls *

sha256sum */*.jpg | sort | uniq -w 64 -D

for album in $(cat ranking.txt); do
  for picture in $(ls "$album" | LC_ALL=C sort); do sha256sum "$album/$picture"; done
done | awk 'seen[$1]++ { print $2 }' | LC_ALL=C sort > deleted.txt

cat deleted.txt

xargs -r rm -- < deleted.txt

sha256sum */*.jpg | sort | uniq -w 64 -D
""",
)


def _scans(random: Random) -> Chore:
    before, renamed = Tree(), {}
    for number, name in enumerate(random.sample(NAMES, 18)):
        day = date(2023, 1, 1) + timedelta(random.randrange(700))
        kind = ("scan", "fax", "letter")[number % 3]
        old = {
            "scan": f"Scan {day.month}-{day.day}-{day:%y} {name.upper()}.TXT",
            "fax": f"Fax ({name.title()}) {day:%d.%m.%Y}.txt",
            "letter": f"{name} letter {day:%Y%m%d}.text",
        }[kind]
        before.put(old, f"{kind} of {name}\n")
        renamed[old] = f"{day:%Y-%m-%d}_{name}_{kind}.txt"
    before.put("Scan settings.ini", "[scanner]\ndpi = 300\n")
    before = before.begun()
    wanted = Tree(before)
    for old, new in renamed.items():
        wanted.move(old, new)
    return Chore(
        "Rename the scans, the faxes and the letters to `YYYY-MM-DD_NAME_KIND.txt`, with the name in lower case and the "
        "kind `scan`, `fax` or `letter`. In the names of scans the date is month-day-year, in those of faxes "
        "day.month.year. `Scan settings.ini` is no scan.",
        before,
        wanted,
    )


SCANS = ChoreKind(
    _scans,
    r"""
ls

for old in Scan\ *.TXT; do
  read -r _ day name <<< "${old%.TXT}"
  IFS=- read -r m d y <<< "$day"
  mv -- "$old" "$(printf '20%02d-%02d-%02d_%s_scan.txt' "$((10#$y))" "$m" "$d" "${name,,}")"
done

for old in Fax\ *.txt; do
  [[ $old =~ ^Fax\ \((.*)\)\ (..)\.(..)\.(....)\.txt$ ]]
  name=${BASH_REMATCH[1],,}
  mv -- "$old" "${BASH_REMATCH[4]}-${BASH_REMATCH[3]}-${BASH_REMATCH[2]}_${name}_fax.txt"
done

for old in *\ letter\ *.text; do
  read -r name _ day <<< "${old%.text}"
  mv -- "$old" "${day:0:4}-${day:4:2}-${day:6:2}_${name}_letter.txt"
done

ls
""",
)


def _releases(random: Random) -> Chore:
    before = Tree()
    releases: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for service in random.sample(WORDS, 5):
        versions = sorted(
            {(random.randint(1, 3), random.randint(0, 14)) for _ in range(9)}, reverse=True
        )
        good = sorted(random.sample(versions, max(3, len(versions) - 2)), reverse=True)
        for version in versions:
            state = "ok" if version in good else "failed"
            folder = f"{service}/{version[0]}.{version[1]}"
            before.put(f"{folder}/release.info", f"service: {service}\nchecks: {state}\n")
            before.put(f"{folder}/program", f"{service} {version}\n", 0o755)
        releases[service] = versions, good
        before.link(f"{service}/current", "{}.{}".format(*versions[-1]))
    before = before.begun()
    wanted = Tree(before)
    lines = []
    for service, (versions, good) in releases.items():
        current, previous = ("{}.{}".format(*version) for version in good[:2])
        wanted.link(f"{service}/current", current)
        wanted.link(f"{service}/previous", previous)
        for version in versions:
            if version < good[1]:
                wanted.remove(f"{service}/{version[0]}.{version[1]}")
        lines.append(f"{service} {current}\n")
    wanted.put("current.txt", "".join(sorted(lines)))
    return Chore(
        "Each folder is a service with its versions. Of the versions whose `release.info` says `checks: ok`, let the link "
        "`current` of the service lead to the highest (2.10 is higher than 2.9), and a link `previous` beside it to the next "
        "lower; both are relative, such as `2.10`. Delete every version lower than `previous`. Write `current.txt` with a "
        "line `SERVICE VERSION` for each service, sorted.",
        before,
        wanted,
    )


RELEASES = ChoreKind(
    _releases,
    r"""
ls -l *; grep -H checks */*/release.info

for service in */; do
  service=${service%/}
  good=$(grep -lx 'checks: ok' "$service"/[0-9]*/release.info | cut -d/ -f2 | sort -rV | head -n 2)
  set -- $good
  ln -sfn "$1" "$service/current"
  ln -sfn "$2" "$service/previous"
done

ls -l */current */previous

for service in */; do
  service=${service%/}; previous=$(readlink "$service/previous")
  for version in $(ls "$service" | grep '^[0-9]'); do
    lowest=$(printf '%s\n' "$version" "$previous" | sort -V | head -n 1)
    [ "$version" = "$previous" ] || [ "$lowest" = "$previous" ] || rm -r "$service/$version"
  done
done

for service in */; do echo "${service%/} $(readlink "${service}current")"; done | LC_ALL=C sort > current.txt

cat current.txt
""",
)
