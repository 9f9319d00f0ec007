"""Search over runs, on either store, over what was recorded before there was an index, too."""

from types import SimpleNamespace

import orjson
import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in
from tests.dashboard.recorded import line, run_lines

from hud.trace import new_id
from hud_platform.access.teams import Teams
from hud_platform.search.run_index import index_missing
from hud_platform.search.run_search import search
from hud_platform.store import Store, tables
from hud_platform.store.ingest import ingest, to_be_indexed
from hud_platform.store.tables import LOCAL_TEAM

AT = 1_760_000_000_000_000


def told(
    platform,
    prompt,
    *answers,
    slug="a",
    team=LOCAL_TEAM,
    final=None,
    age=0,
    trace=None,
    task=None,
):
    """Record a run that was told `prompt` and said `answers`; return its trace id."""
    trace, job = trace or new_id(), new_id()
    steps = [{"source": "user", "messages": [{"role": "user", "content": prompt}]}]
    steps += [{"source": "agent", "messages": [], "content": answer} for answer in answers]
    known = {"job_id": job, "group_id": new_id(), "attempt": 0, "slug": slug, "model": "tiny"}
    known["task"] = task
    lines = [
        line(b"J", job, {"name": "told", "taskset_id": None, "group_size": 1, "pid": None,
                         "process_started": None, "host": "h", "at": AT}),
        *(step_line(trace, number, step) for number, step in enumerate(steps, 1)),
        *run_lines(trace, {**known, "started_at": AT - age}, {"reward": 1.0, "content": final}),
    ]  # fmt: skip
    assert not ingest(platform.store, b"".join(lines), team).damaged
    return trace


def step_line(trace, number, step):
    from hud.trace.recording.journal import encode_event

    payload = orjson.dumps({"step_id": number, **step})
    return encode_event(b"S", trace, number, payload)


def ids(found):
    return [item["trace_id"] for item in found.items]


@pytest.mark.slow
async def test_runs_are_found_by_words_of_their_prompts_and_answers(web, platform):
    old = told(platform, "Which planet is the largest?", "I think of Jupiter.", age=5)
    new = told(platform, "Which planet is red?", "Mars it is.", final="Mars")
    asked = await web.get("/search.json", params={"text": "planet"})
    assert asked.status_code == 200, asked.text
    assert [run["trace_id"] for run in asked.json()["items"]] == [new, old]
    (found,) = (await web.get("/search.json", params={"text": "JUPITER"})).json()["items"]
    assert found["trace_id"] == old
    assert found["snippet"]["where"] == "answer"
    assert [part["text"] for part in found["snippet"]["parts"] if part["match"]] == ["Jupiter"]
    asked = (await web.get("/search.json", params={"text": "thin largest jupiter"})).json()
    assert [part["text"] for part in asked["items"][0]["snippet"]["parts"] if part["match"]] == [
        "thin",
        "Jupiter",
    ]
    page = (await web.get("/search", params={"text": "jup"})).text
    assert "<mark>Jup</mark>iter" in page
    assert f'href="/trace/{old}"' in page


@pytest.mark.slow
async def test_a_run_is_found_with_the_title_of_its_job(web, platform):
    told(platform, "Which planet?", task={"env": "planets", "id": "ask", "args": {}})
    (run,) = (await web.get("/search.json", params={"text": "planet"})).json()["items"]
    assert run["job"] == "planets · told"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("held-out", True),
        ('"held out"', True),
        ('"out held"', False),
        ('"held ou"', False),
        ("hel ou", True),
        ("held absent", False),
        ("cause=certificate", True),
        ("3.14", True),
        ("größe", True),
        ("grosse", False),
        ("snake_case", True),
        ("日本", True),
        ("' OR 1=1 --", False),
        ("AND OR NOT NEAR(", False),
        ("words : held", False),
        ("***", False),
    ],
)
async def test_terms_mean_the_same_on_every_store(platform, text, found):
    trace = told(
        platform,
        "held-out; cause=certificate, 3.14 of Größe, snake_case",
        "日本語 and so on",
    )
    assert ids(search(platform.store, LOCAL_TEAM, text, 10, 0)) == ([trace] if found else [])


async def test_a_run_that_is_recorded_anew_is_found_by_what_it_says_now(platform):
    trace = told(platform, "first words", "apples")
    assert ids(search(platform.store, LOCAL_TEAM, "apples", 10, 0)) == [trace]
    told(platform, "first words", "apples", final="pears", trace=trace)
    assert ids(search(platform.store, LOCAL_TEAM, "pears", 10, 0)) == [trace]


@pytest.mark.slow
async def test_another_team_s_runs_are_not_found(keyed):
    other = Teams(keyed.store).find_or_create("other").id
    told(keyed, "a secret prompt", "hidden", team=other)
    async with sign_in(keyed, "read") as client:
        answer = await client.get("/search.json", params={"text": "secret"})
        assert answer.json()["items"] == []
        # Nor by naming the team's id, which stands in the same index.
        answer = await client.get("/search.json", params={"text": other})
        assert answer.json()["items"] == []
    async with sign_in(keyed, "read", team=other) as client:
        assert (
            len((await client.get("/search.json", params={"text": "secret"})).json()["items"]) == 1
        )


@pytest.mark.slow
async def test_hostile_text_is_shown_as_text(web, platform):
    told(platform, "find <script>alert(1)</script> \u202ereversed", "x" * 5000)
    page = (await web.get("/search", params={"text": "alert"})).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "U+202E" in page
    deep = {"content": "buried"}
    for _ in range(200):
        deep = {"content": deep}
    told(platform, deep, "plain")
    assert len((await web.get("/search.json", params={"text": "plain"})).json()["items"]) == 1
    assert (await web.get("/search", params={"text": '"><svg onload=alert(1)>'})).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("payload", [b"[1]", b'"text"', b"{", b"null", b"\xff"])
async def test_a_step_that_is_none_keeps_no_search_from_working(web, platform, payload):
    trace = told(platform, "a sound prompt", "sound")
    with platform.store.begin() as connection:
        connection.execute(
            sa.insert(tables.steps).values(trace_id=trace, step_id=9, payload=payload)
        )
    (found,) = (await web.get("/search.json", params={"text": "sound"})).json()["items"]
    assert found["trace_id"] == trace


@pytest.mark.slow
async def test_pages_of_hits_and_what_is_left_to_index(web, platform):
    for number in range(30):
        told(platform, f"common {number}", age=number)
    assert index_missing(platform.store, LOCAL_TEAM, seconds=-1) == 0
    first = (await web.get("/search.json", params={"text": "common"})).json()
    second = (await web.get("/search.json", params={"text": "common", "offset": 25})).json()
    assert (first["total"], len(first["items"]), len(second["items"])) == (30, 25, 5)
    assert not {run["trace_id"] for run in first["items"]} & {
        run["trace_id"] for run in second["items"]
    }


@pytest.mark.slow
async def test_a_bounded_search_says_how_many_runs_it_did_not_see(platform, monkeypatch):
    for number in range(130):
        told(platform, f"common {number}", age=number)
    found = search(platform.store, LOCAL_TEAM, "common", 10, 0)
    assert found.missing == 0
    every = sa.select(tables.runs.c.trace_id)
    with platform.store.begin() as connection:
        to_be_indexed(connection, LOCAL_TEAM, connection.execute(every).scalars().all())
    monkeypatch.setattr("hud_platform.search.run_index.RUNS_AT_ONCE", 100)
    assert index_missing(platform.store, LOCAL_TEAM, seconds=-1) == 30
    assert index_missing(platform.store, LOCAL_TEAM, seconds=-1) == 0


NEWER_COLUMNS = [
    ("builds", "digest"),
    *(("jobs", name) for name in ("purpose", "called_by", "training_run_id")),
    ("runs", "source"),
    ("runs", "foreign_id"),
    *(("runs", name) for name in ("reward_rule", "graded_reward", "may_train")),
    *(("runs", name) for name in ("tool_calls", "tool_errors", "tool_time_outs")),
    ("checkpoints", "system_prompt"),
    *(("trainer_logprobs", name) for name in ("reward", "reward_rule")),
    *(("samples", name) for name in ("pictures", "excluded")),
    *(("rollouts", name) for name in ("needs", "faults", "preemptions")),
]


def test_a_home_of_an_earlier_release_gets_the_index(tmp_path):
    """As it was before: without the index, and with a run."""
    if Store.open(tmp_path / "probe").engine.dialect.name != "sqlite":
        pytest.skip("Of homes with SQLite.")
    old = Store.open(tmp_path)
    holder = SimpleNamespace(store=old)
    trace = told(holder, "recorded long ago", "yes")
    with old.begin() as connection:
        for name in ("run_words", "indexed_runs", "runs_to_index"):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        connection.exec_driver_sql("ALTER TABLE builds DROP COLUMN attempt")
        for index in ("rollouts_needs", "ix_jobs_called_by", "ix_jobs_training_run_id"):
            connection.exec_driver_sql(f"DROP INDEX {index}")
        connection.exec_driver_sql("DROP INDEX requests_of_trace")
        connection.exec_driver_sql("DROP INDEX runs_of_job")
        for table, column in NEWER_COLUMNS:
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.exec_driver_sql("CREATE INDEX runs_of_job ON runs (job_id)")
        for table in (
            "run_reservations",
            "limit_levels",
            "lost_attempts",
            "fleet_nodes",
            "run_passes",
            "run_calls",
            "saved_views",
            "shared_links",
            "labels",
            "comparisons",
            "outcomes",
            "reward_rules",
            "source_policies",
            "trained_runs",
            "rollout_snapshots",
            "trained_prompts",
        ):
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
    old.close()

    found = search(Store.open(tmp_path), LOCAL_TEAM, "long ago", 10, 0)
    assert ids(found) == [trace]


@pytest.mark.slow
async def test_the_page_says_over_how_many_runs_it_looked(web, platform, monkeypatch):
    for number in range(130):
        told(platform, f"common {number}", age=number)
    search(platform.store, LOCAL_TEAM, "common", 10, 0)
    page = (await web.get("/search", params={"text": "absent"})).text
    assert "None of the 130 runs meets all of these conditions." in page
    every = sa.select(tables.runs.c.trace_id)
    with platform.store.begin() as connection:
        to_be_indexed(connection, LOCAL_TEAM, connection.execute(every).scalars().all())
    monkeypatch.setattr("hud_platform.search.run_search.index_missing", lambda *_: 30)
    page = (await web.get("/search", params={"text": "absent"})).text
    assert "Searched 100 of 130 runs, the newest." in page
    assert "None of the 100 runs that were searched" in page
    assert "30 runs were not searched." in page
