"""Chores of contents and permissions: a site's modes, a list of changes, exported orders."""

from __future__ import annotations

from random import Random

from hud_benchmarks.autonomy.applications.files.chore import WORDS, Chore, ChoreKind
from hud_benchmarks.autonomy.applications.files.tree import Entry, Tree

_MODES = (0o600, 0o640, 0o644, 0o664, 0o666, 0o700, 0o755, 0o775, 0o777)
_FOLDER_MODES = (0o700, 0o750, 0o755, 0o775, 0o777)


def _modes(random: Random) -> Chore:
    before = Tree()
    locked = []
    for folder in ("site/pages", "site/tools", "site/private/keys", "site/shared/drafts", "other"):
        for word in random.sample(WORDS, 7):
            script = random.random() < 0.4
            path = f"{folder}/{word}{'.sh' if script else '.txt'}"
            head = "#!/bin/sh\n" if script and random.random() < 0.7 else ""
            before.put(path, f"{head}echo {word}\n", random.choice(_MODES))
            if random.random() < 0.1 and folder != "other":
                locked.append(path)
    locked = locked or [next(path for path in before if path.endswith(".txt"))]
    before.put("locked.txt", "".join(f"{path}\n" for path in sorted(locked)))
    for path, entry in before.items():
        if entry.kind == "folder":
            before[path] = Entry("folder", mode=random.choice(_FOLDER_MODES))
    before = before.begun()
    wanted = Tree(before)
    for path, entry in before.items():
        if path != "site" and not path.startswith("site/"):
            continue
        private, shared = (
            f"{path}/".startswith("site/private/"),
            f"{path}/".startswith("site/shared/"),
        )
        runs = path.endswith(".sh") and entry.content.startswith(b"#!")
        mode = 0o755 if entry.kind == "folder" or runs else 0o644
        if private:
            mode = 0o700 if entry.kind == "folder" else 0o600
        elif shared:
            mode = 0o775 if entry.kind == "folder" else 0o664
        wanted[path] = Entry(entry.kind, entry.content, 0o444 if path in locked else mode)
    return Chore(
        "Set the permissions of everything in `site`. Folders and `.sh` files whose first two characters are `#!` "
        "have 755, other files 644. For `site/private` and all below, folders have 700 and files 600; for `site/shared` "
        "and all below, folders have 775 and files 664. A file that `locked.txt` names has 444, wherever it is.",
        before,
        wanted,
    )


MODES = ChoreKind(
    _modes,
    r"""
ls -lR site; cat locked.txt

head -c 2 site/*/*.sh site/*/*/*.sh

find site -type d -exec chmod 755 {} +

find site -type f -exec chmod 644 {} +

for file in $(find site -name '*.sh'); do [ "$(head -c 2 "$file")" = '#!' ] && chmod 755 "$file"; done

find site/private -type f -exec chmod 600 {} +; find site/private -depth -type d -exec chmod 700 {} +

find site/shared -type f -exec chmod 664 {} +; find site/shared -type d -exec chmod 775 {} +

xargs chmod 444 < locked.txt

ls -lR site
""",
)


def _changes(random: Random) -> Chore:
    before = Tree()
    stock = random.sample(WORDS, 26)
    old, new = stock[:14], stock[14:]
    for word in old:
        before.put(
            f"live/{word[0]}/{word}.txt", f"title: {word}\nrevision: {random.randint(1, 9)}\n"
        )
    for word in new:
        before.put(f"staging/{word}.txt", f"title: {word}\nrevision: 1\n")
    before = before.begun()
    wanted = Tree(before)
    orders = [("publish", word) for word in new[:7]] + [("retire", word) for word in old[:4]]
    orders += [("raise", word) for word in old[4:9]] + [("discard", word) for word in new[7:9]]
    random.shuffle(orders)
    held = set(random.sample(orders, 4))
    lines = []
    for order in orders:
        act, word = order
        held_now = order in held
        lines.append(f"{'hold: ' if held_now else ''}{act} {word}")
        if held_now:
            continue
        live = f"live/{word[0]}/{word}.txt"
        if act == "publish":
            wanted.move(f"staging/{word}.txt", live)
        elif act == "discard":
            wanted.remove(f"staging/{word}.txt")
        elif act == "retire":
            wanted.move(live, f"retired/{word}.txt")
        else:
            title, revision = wanted.text(live).split("revision: ")
            wanted.put(live, f"{title}revision: {int(revision) + 1}\n", wanted[live].mode)
    before.put("orders.txt", "\n".join(lines) + "\n", 0o644)
    wanted["orders.txt"] = before["orders.txt"]
    for letter in {path for path in wanted if path.count("/") == 1 and path.startswith("live/")}:
        if not any(path.startswith(f"{letter}/") for path in wanted):
            wanted.remove(letter)
    wanted.put("held.txt", "".join(f"{line[6:]}\n" for line in lines if line.startswith("hold: ")))
    return Chore(
        "Carry out `orders.txt`. Pages are in `live`, in folders by their first letter. `publish` moves a page from "
        "`staging` into `live`; `discard` deletes it from `staging`; `retire` moves a page from `live` into `retired`; "
        "`raise` adds 1 to the revision of a page in `live`. Orders that begin with `hold:` are not carried out: list them, "
        "without `hold: `, in `held.txt` in their order. Letters of `live` that become empty are deleted.",
        before,
        wanted,
    )


CHANGES = ChoreKind(
    _changes,
    r"""
cat orders.txt; ls -R live staging

sed -n 's/^hold: //p' orders.txt > held.txt

sed -n 's/^publish //p' orders.txt | while read -r page; do
  mkdir -p "live/${page:0:1}" && mv "staging/$page.txt" "live/${page:0:1}/"
done

sed -n 's/^discard //p' orders.txt | while read -r page; do rm "staging/$page.txt"; done

sed -n 's/^retire //p' orders.txt | while read -r page; do
  mkdir -p retired && mv "live/${page:0:1}/$page.txt" retired/
done

sed -n 's/^raise //p' orders.txt | while read -r page; do
  file=live/${page:0:1}/$page.txt
  revision=$(sed -n 's/^revision: //p' "$file")
  sed -i "s/^revision: .*/revision: $((revision + 1))/" "$file"
done

find live -mindepth 1 -type d -empty -delete

ls -R live staging retired; cat held.txt
""",
)


def _orders(random: Random) -> Chore:
    before = Tree()
    regions = random.sample(WORDS, 4)
    newest: dict[int, tuple[str, str, int]] = {}
    for number in range(1, 5):
        rows = []
        for order in random.sample(range(100, 160), 22):
            state = random.choice(["paid", "paid", "paid", "open", "cancelled"])
            region = newest[order][0] if order in newest else random.choice(regions)
            newest[order] = region, state, random.randint(5, 900)
            rows.append(f"{order},{region},{state},{newest[order][2]}\n")
        before.put(f"export/orders-{number}.csv", "order,region,state,amount\n" + "".join(rows))
    before = before.begun()
    wanted = Tree(before)
    totals = []
    for region in sorted(regions):
        paid = [
            (order, amount)
            for order, (place, state, amount) in sorted(newest.items())
            if place == region and state == "paid"
        ]
        if paid:
            lines = "".join(f"{order},{amount}\n" for order, amount in paid)
            wanted.put(f"regions/{region}.csv", f"order,amount\n{lines}")
            totals.append(f"{region},{len(paid)},{sum(amount for _, amount in paid)}\n")
    wanted.put("totals.csv", "region,orders,amount\n" + "".join(totals))
    return Chore(
        "The exports overlap: an order that is in several has the state and the amount that the export with the highest "
        "number gives. Write the orders that are paid into `regions/REGION.csv` with the header `order,amount`, sorted by "
        "order, and `totals.csv` with the header `region,orders,amount`, with the number and the sum of the paid orders of each "
        "region that has any, sorted by region.",
        before,
        wanted,
    )


ORDERS = ChoreKind(
    _orders,
    r"""
head -n 5 export/*.csv

for number in 1 2 3 4; do tail -n +2 export/orders-$number.csv; done |
  awk -F, '{ last[$1] = $0 } END { for (order in last) print last[order] }' | sort -n | grep ',paid,' > /tmp/paid.csv

mkdir regions
for region in $(cut -d, -f2 /tmp/paid.csv | LC_ALL=C sort -u); do
  { echo order,amount; awk -F, -v r="$region" '$2 == r { print $1 "," $4 }' /tmp/paid.csv; } > "regions/$region.csv"
done

head -n 3 regions/*.csv

{ echo region,orders,amount
  awk -F, '{ n[$2]++; s[$2] += $4 } END { for (r in n) print r "," n[r] "," s[r] }' /tmp/paid.csv | LC_ALL=C sort
} > totals.csv

cat totals.csv
""",
)
