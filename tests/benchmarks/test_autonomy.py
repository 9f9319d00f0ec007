"""`autonomy-10`: goals and grades of all categories, and the web applications over HTTP; the scripts in a browser."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections import Counter

import httpx
import pytest
from tests.benchmarks.played import NOTHING, rewards

from hud.benchmarks import benchmark
from hud.eval import NullRecorder
from hud.trace import ToolStep
from hud_benchmarks.autonomy.applications import WEB
from hud_benchmarks.autonomy.benchmarks import CATEGORIES, SEEDS
from hud_benchmarks.autonomy.web.application import credentials
from hud_benchmarks.autonomy.web.changes import changes
from hud_benchmarks.autonomy.web.grading import graded
from hud_benchmarks.autonomy.web.site import OpenSite

SEED = SEEDS["held-out"][0]
WEB_KINDS = [(name, kind.name) for name, app in WEB.items() for kind in app.kinds]
MOST_PAGES = 60
in_a_browser = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)


def served(app, db):
    """A client of an application over a database; `Client.get` follows redirections."""
    site = app.make_pages().serve(db, accounts=app.user is not None)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(site), base_url="http://127.0.0.1", follow_redirects=True
    )


async def sign_in(app, db, client):
    if app.user is not None:
        login, password = credentials(app, db)
        page = await client.post("/sign-in", data={"login": login, "password": password})
        assert "Sign out" in page.text


def test_every_task_has_a_slug_of_its_own_in_one_split():
    autonomy = benchmark("autonomy-10")
    slugs = {split: [task.slug for task in autonomy.tasks(split)] for split in autonomy.sizes}
    assert {split: len(found) for split, found in slugs.items()} == autonomy.sizes
    assert max(Counter(slug for found in slugs.values() for slug in found).values()) == 1
    for category in CATEGORIES:
        assert len(category.scripts) >= 3, category.name


@pytest.mark.parametrize(("name", "kind"), WEB_KINDS)
def test_a_goal_is_drawn_from_its_seed_and_graded_on_the_state(name, kind):
    app = WEB[name]
    goal, again, other = (app.goal(kind, seed) for seed in (SEED, SEED, SEED + 1))
    assert goal.instruction == again.instruction != other.instruction
    before, expected = app.database(SEED), app.database(SEED)
    goal.apply(expected)
    assert graded(before, expected, before, app.unjudged).reward == 0.0
    assert graded(before, expected, expected, app.unjudged).reward == 1.0
    damaged = app.database(SEED)
    goal.apply(damaged)
    damaged.execute("UPDATE users SET name = 'damaged' WHERE id = 1")
    assert graded(before, expected, damaged, app.unjudged).reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", WEB)
async def test_pages_are_read_without_a_change(name):
    app = WEB[name]
    db = app.database(SEED)
    async with served(app, db) as client:
        await sign_in(app, db, client)
        waiting, seen = ["/"], set()
        while waiting and len(seen) < MOST_PAGES:
            path = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            page = await client.get(path)
            assert page.status_code == 200, path
            found = re.findall(r'href="([^"]+)"', page.text)
            waiting += [str(page.url.join(one.replace("&amp;", "&")).raw_path, "ascii") for one in found if not one.startswith("data:")]  # fmt: skip
    assert len(seen) > 10
    assert not changes(app.database(SEED), db, ())


@pytest.mark.parametrize("name", [name for name, app in WEB.items() if app.user is not None])
async def test_pages_are_for_users_who_are_signed_in(name):
    app = WEB[name]
    async with served(app, app.database(SEED)) as client:
        assert "Password" in (await client.get("/")).text
        page = await client.post("/sign-in", data={"login": app.user, "password": "guess"})
        assert (page.status_code, "do not match" in page.text) == (422, True)


async def test_a_shop_takes_an_order_of_what_is_in_stock_with_a_coupon_that_holds():
    app = WEB["shop"]
    db = app.database(SEED)
    (gone,) = db.execute("SELECT id FROM variants WHERE stock = 0").fetchone()
    db.execute("UPDATE variants SET price = 2000, stock = 9")
    db.execute("UPDATE variants SET stock = 0 WHERE id = ?", (gone,))
    before = sqlite3.connect(":memory:")
    db.commit()
    db.backup(before)
    async with served(app, db) as client:
        await sign_in(app, db, client)

        async def post(path, **data):
            return (await client.post(path, data=data)).text

        assert "out of stock" in await post("/cart", product="1", variant=str(gone), quantity="1")
        assert "has expired" in await post("/cart/coupon", code="winter25")
        assert "not for this cart" in await post("/cart/coupon", code="BIG12")
        assert "Coupon SPRING5" in await post("/cart/coupon", code="spring5")
        assert "New address" in await post("/checkout/payment", payment="Invoice")
        assert "Choose an address." in await post("/checkout/address")
        await post("/checkout/address", address="2")
        await post("/checkout/delivery", delivery="standard", gift_message="")
        await post("/checkout/payment", payment="Invoice")
        assert "Confirm that you have checked" in await post("/checkout/review")
        assert not changes(before, db, ())
        assert "Thank you." in await post("/checkout/review", checked="1")
        assert "Your cart is empty." in (await client.get("/checkout/address")).text
    order = db.execute("SELECT * FROM orders ORDER BY id DESC").fetchone()
    assert (order["goods"], order["discount"], order["shipping"]) == (4000, 200, 490)
    assert (order["coupon"], order["status"], order["placed"]) == ("SPRING5", "open", "2026-03-02")


async def test_a_number_that_no_row_can_hold_is_refused():
    app = WEB["crm"]
    async with served(app, app.database(SEED)) as client:
        await sign_in(app, app.database(SEED), client)
        account = {"name": "New", "industry": "Energy", "city": "Bonn", "owner": "9" * 30}
        assert (await client.post("/accounts/new", data=account)).status_code == 400
        assert (await client.get(f"/accounts/{'9' * 30}")).status_code == 400


async def test_a_crm_converts_leads_sends_quotes_and_merges_contacts_in_steps_that_are_checked():
    app = WEB["crm"]
    db = app.database(SEED)
    (lead,) = db.execute(
        "SELECT l.id FROM leads l JOIN accounts a ON a.name = l.company WHERE l.status = 'new'"
    ).fetchone()
    first, second = (
        row["id"] for row in db.execute("SELECT min(id) AS id FROM contacts GROUP BY account_id LIMIT 2")
    )  # fmt: skip
    async with served(app, db) as client:
        await sign_in(app, db, client)

        async def post(path, **data):
            return (await client.post(path, data=data)).text

        convert = f"/leads/{lead}/convert"
        assert "already" in await post(
            f"{convert}/account", account="", industry="Energy", city="Bonn"
        )
        assert "1. Account" not in await post(
            f"{convert}/account", account="3", industry="", city=""
        )
        assert "Choose a role." in await post(f"{convert}/contact", role="Chef")
        assert (
            "Role" in (await client.get(f"{convert}/review")).text
        )  # The first page that is not filled.
        await post(f"{convert}/contact", role="IT")
        assert "whole number" in await post(
            f"{convert}/deal", name="New", amount="1.5", closes="2026-05-01"
        )
        both = {"contact": [str(first), str(second)]}
        assert "of one account" in await post("/contacts/merge", **both)
        assert not changes(app.database(SEED), db, ())
        await post(f"{convert}/deal", name="New", amount="150", closes="2026-05-01")
        assert "is converted" in await post(f"{convert}/review")
        await post("/deals/1/quotes")
        assert "needs lines" in await post("/quotes/1/send")
        await post("/quotes/1/lines", product="2", quantity="3")
        assert "from 0 to 30" in await post("/quotes/1", discount="40", valid_until="2026-05-01")
        assert "8,640 EUR" in await post("/quotes/1", discount="10", valid_until="2026-05-01")
        await post("/quotes/1/send")
        assert "stays as it is" in await post("/quotes/1/lines", product="2", quantity="3")
    deal = db.execute("SELECT * FROM deals WHERE name = 'New'").fetchone()
    assert (deal["account_id"], deal["amount"], deal["stage"]) == (3, 150, "qualified")
    assert db.execute("SELECT sum(quantity) FROM quote_lines").fetchone()[0] == 3


@pytest.mark.parametrize("name", WEB)
def test_a_run_begins_with_a_fresh_database_in_under_a_second(name, tmp_path):
    app, site = WEB[name], OpenSite(tmp_path, 0)
    started = time.perf_counter()
    for seed in (SEED + 1000, SEED + 1000):
        site.begin(app, seed)
        assert time.perf_counter() - started < 1.0
        assert not changes(app.database(seed), site.state(), ())
        with sqlite3.connect(tmp_path / "database.sqlite") as left:
            left.execute("UPDATE users SET name = name || ' changed'")
        left.close()
        started = time.perf_counter()
    site.close()


async def test_tickets_are_changed_by_forms_that_are_checked():
    app = WEB["tickets"]
    db = app.database(SEED)
    async with served(app, db) as client:
        await sign_in(app, db, client)
        page = await client.post("/tickets/5/close", data={"resolution": "duplicate", "duplicate_of": "5"})  # fmt: skip
        assert "Give the number of the other ticket." in page.text
        await client.post("/tickets/5/close", data={"resolution": "duplicate", "duplicate_of": "4"})
        assert (await client.post("/tickets/5/edit", data={"title": "x"})).status_code == 400
        assert not changes(app.database(SEED), db, ())
        confirmed = {"resolution": "duplicate", "duplicate_of": "4", "confirmed": "yes"}
        page = await client.post("/tickets/5/close", data=confirmed)
        assert "Ticket 5 is closed." in page.text
        assert "is closed." not in (await client.get("/tickets/5")).text
    assert dict(db.execute("SELECT status, resolution, duplicate_of FROM tickets WHERE id = 5").fetchone()) == {
        "status": "closed", "resolution": "duplicate", "duplicate_of": 4,
    }  # fmt: skip


async def test_settings_are_changed_by_the_last_of_several_pages_each_of_which_is_checked():
    app = WEB["settings"]
    db = app.database(SEED)
    name = "revoked-by-nobody"
    async with served(app, db) as client:
        await sign_in(app, db, client)
        form = {"step": "1", "name": name, "owner": "1"}
        page = await client.post("/keys/new", data=form)
        assert "Step 2 of 4" in page.text
        page = await client.post("/keys/new", data={**form, "step": "2"})
        assert (page.status_code, "Scopes: this is needed." in page.text) == (422, True)
        form |= {"step": "4", "scopes": "read", "network": "office", "expires": "2026-03-02"}
        page = await client.post("/keys/new", data=form)
        assert "Expires on: a day after 2026-03-02." in page.text
        assert not changes(app.database(SEED), db, ())
        page = await client.post("/keys/new", data={**form, "expires": "2026-03-03"})
        assert f"The key {name} is created." in page.text
        (key,) = db.execute("SELECT id FROM keys WHERE name = ?", (name,)).fetchone()
        page = await client.post(f"/keys/{key}/revoke", data={"step": "1", "typed": "guess"})
        assert f"this is not {name}." in page.text
        await client.post(f"/keys/{key}/revoke", data={"step": "1", "typed": name})
    found = db.execute("SELECT network, expires, status FROM keys WHERE id = ?", (key,)).fetchone()
    assert tuple(found) == ("office", "2026-03-03", "revoked")


def test_added_rows_are_known_by_their_content_and_not_by_their_ids():
    schema = """
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT);
        CREATE TABLE items (id INTEGER PRIMARY KEY, order_id INTEGER REFERENCES orders, name TEXT);
        CREATE TABLE tags (order_id INTEGER REFERENCES orders, name TEXT);
    """
    before, one, other = (sqlite3.connect(":memory:") for _ in range(3))
    for db in (before, one, other):
        db.executescript(schema)
    one.executescript(
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b'); INSERT INTO items VALUES (1, 1, 'x'), (2, 2, 'y');"
        "INSERT INTO tags VALUES (1, 'new')"
    )
    other.executescript(
        "INSERT INTO orders VALUES (7, 'b'), (8, 'a'); INSERT INTO items VALUES (4, 7, 'y'), (5, 8, 'x');"
        "INSERT INTO tags VALUES (8, 'new')"
    )
    assert changes(before, one, ()) == changes(before, other, ())
    other.execute("UPDATE items SET order_id = 7")
    assert changes(before, one, ()) != changes(before, other, ())
    assert not changes(before, other, ("orders", "items", "tags"))


TICKET = (
    "INSERT INTO tickets (component_id, title, body, status, priority, reporter_id, opened, duplicate_of, parent_id) "
    "SELECT component_id, ?, body, status, priority, reporter_id, opened, ?, ? FROM tickets WHERE id = 1"
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 3000])
def test_added_rows_that_refer_to_each_other_are_graded(number):
    """Duplicates of each other, or a chain without end, ended the grader, and the run had no reward."""
    app = WEB["tickets"]
    before, expected, after = (app.database(SEED) for _ in range(3))
    app.goal("triage", SEED).apply(expected)
    app.goal("triage", SEED).apply(after)
    last = after.execute("SELECT max(id) FROM tickets").fetchone()[0]
    for place in range(number):
        following = last + 1 + (place + 1) % number
        after.execute(TICKET, (f"ring {place}", following, following))
    result = graded(before, expected, after, app.unjudged)
    assert result.reward == 0.0
    assert result.content == f"{number} changes were not asked for."


def test_rings_of_added_rows_are_told_apart_by_their_content():
    app = WEB["tickets"]
    before, *others = (app.database(SEED) for _ in range(4))
    last = before.execute("SELECT max(id) FROM tickets").fetchone()[0]
    for state, titles in zip(others, (["a", "b"], ["b", "a"], ["a", "c"]), strict=True):
        for place, title in enumerate(titles):
            state.execute(TICKET, (title, last + 2 - place, None))
    one, same, other = (changes(before, state, app.unjudged) for state in others)
    assert one == same != other


@pytest.mark.slow
@in_a_browser
async def test_doing_nothing_scores_0():
    tasks = benchmark("autonomy-10").tasks().filter([f"tickets-triage-{SEED}"])
    assert set((await rewards(tasks, NOTHING)).values()) == {0.0}


@in_a_browser
@pytest.mark.slow
async def test_scripts_reach_the_goals_of_the_web_applications():
    autonomy = benchmark("autonomy-10")
    slugs = [f"{name}-{kind.name}-{SEED}" for name, app in WEB.items() for kind in app.kinds[:3]]
    tasks = autonomy.tasks().filter(slugs)
    assert await rewards(tasks, autonomy.oracle(), max_concurrent=2) == dict.fromkeys(slugs, 1.0)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="needs Chromium (scripts/setup-worlds)"
)
async def test_what_a_script_does_in_a_browser_is_recorded():
    autonomy = benchmark("autonomy-10")
    name, app = next(iter(WEB.items()))
    task = autonomy.tasks().filter([f"{name}-{app.kinds[0].name}-{SEED}"])
    (run,) = (await task.run(autonomy.oracle(), recorder=NullRecorder())).runs
    calls = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    assert run.reward == 1.0
    assert len(calls) > 3
    assert {step.call.name for step in calls} == {"page"}
    assert {step.call.arguments["action"] for step in calls} <= {"click", "fill", "choose"}
    assert all(step.result.text.startswith("http://127.0.0.1:") for step in calls)
    assert any("screenshot" in step.extra for step in calls)


async def test_a_form_that_would_fill_the_memory_is_refused(tmp_path):
    site = OpenSite(tmp_path, 0)
    site.begin(WEB["wiki"], 1)
    transport = httpx.ASGITransport(app=site)
    async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
        small = await client.post("/sign-in", data={"login": "x" * 1000, "password": "x"})
        large = await client.post("/sign-in", data={"login": "x" * (2 << 20), "password": "x"})

        async def pieces():
            yield b"login=x"

        endless = await client.post("/sign-in", content=pieces())
    site.close()
    assert small.status_code < 500
    assert small.status_code != 413
    assert (large.status_code, endless.status_code) == (413, 413)


async def test_forms_fill_a_database_up_to_a_bound_and_it_is_graded(tmp_path):
    app, site = WEB["tickets"], OpenSite(tmp_path, 0)
    site.begin(app, SEED)
    transport = httpx.ASGITransport(app=site)
    async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
        login, password = credentials(app, app.database(SEED))
        await client.post("/sign-in", data={"login": login, "password": password})
        comment = {"comment": "x" * 1_000_000}
        answers = [await client.post("/tickets/5/comments", data=comment) for _ in range(80)]
        assert (await client.get("/tickets/5")).status_code == 200
    assert {answer.status_code for answer in answers} == {303, 507}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 70 << 20
    assert graded(app.database(SEED), app.database(SEED + 1), site.state(), ()).reward == 0.0
    site.close()


async def test_sessions_without_end_are_ended(tmp_path):
    app = WEB["tickets"]
    db = app.database(SEED)
    async with served(app, db) as client:
        await sign_in(app, db, client)
        session = dict(client.cookies)
        client.cookies.clear()
        for _ in range(100):
            await client.get("/sign-in", headers={"cookie": ""})
            client.cookies.clear()
        client.cookies.update(session)
        assert "Password" in (await client.get("/", follow_redirects=True)).text
