"""Labels over the routes and the pages, and the agreement of raters."""

import orjson
import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import browse, sign_in
from tests.dashboard.recorded import record

from hud.errors import NotFoundError, UsageError
from hud.review.rater_agreement import alpha, kappa
from hud.trace.recording.journal import encode_event
from hud_platform.access.teams import Teams
from hud_platform.application import create_app
from hud_platform.labels import datasets
from hud_platform.labels.agreement import agreement
from hud_platform.labels.calibration import best_threshold, held_out
from hud_platform.labels.datasets import dataset
from hud_platform.labels.labels import Labels
from hud_platform.process.config import PlatformConfig
from hud_platform.store import records, tables
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM


@pytest.fixture
def platform(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "home"))
    app.state.parts.app = app
    yield app.state.parts
    app.state.parts.close()


@pytest.fixture
def keyed(tmp_path):
    app = create_app(PlatformConfig(tmp_path / "keyed", keys=True))
    app.state.parts.app = app
    yield app.state.parts
    app.state.parts.close()


def traces_of(platform, job, team=LOCAL_TEAM):
    found = records.find_job(platform.store, team, job)
    return [run["trace_id"] for run in records.runs_page(platform.store, found, None, 0)[0]]


async def test_a_run_is_labelled_and_the_same_rater_replaces_the_label(platform):
    (trace,) = traces_of(platform, record(platform, "Evening", {"a": [1.0]}))
    async with browse(platform.app) as client:
        body = {"subject": trace[:8], "name": "correct", "value": 0, "note": "no receipt"}
        first = (await client.post("/v2/labels", json=body)).json()
        assert (first["subject_id"], first["value"], first["rater"]) == (trace, 0, "local")
        await client.post("/v2/labels", json={**body, "value": 1, "note": None})
        await client.post("/v2/labels", json={**body, "value": 0, "rater": "judge"})
        await client.post("/v2/labels", json={"subject": trace, "name": "seen"})
        shown = (
            await client.get("/v2/labels", params={"subject": trace, "name": "correct"})
        ).json()
        assert {label["rater"]: label["value"] for label in shown["items"]} == {
            "local": 1,
            "judge": 0,
        }
        for label in shown["items"]:
            assert (await client.delete(f"/v2/labels/{label['id']}")).status_code == 200
        left = (await client.get("/v2/labels")).json()
        assert [label["name"] for label in left["items"]] == ["seen"]
        assert left["items"][0]["value"] is None


async def test_labels_of_a_server_carry_the_name_of_the_key_and_stay_in_their_team(keyed):
    team = Teams(keyed.store).default().id
    other = Teams(keyed.store).find_or_create("other").id
    job = record(keyed, "Evening", {"a": [1.0]}, team=team)
    (trace,) = traces_of(keyed, job, team)
    _, member = keyed.keys.mint("ana", team, scopes=("run",))
    _, reader = keyed.keys.mint("bo", team, scopes=("read",))
    _, foreign = keyed.keys.mint("eve", other, scopes=("admin",))
    body = {"subject": trace, "name": "correct", "value": 1}
    async with browse(keyed.app) as client:

        async def post(key, **more):
            headers = {"authorization": f"Bearer {key}"}
            return await client.post("/v2/labels", json={**body, **more}, headers=headers)

        label = (await post(member)).json()
        assert label["rater"] == "ana"
        assert (await post(member, rater="bo")).json()["rater"] == "bo via ana"
        assert (await post(reader)).status_code == 403
        assert (await post(foreign)).status_code == 404
        headers = {"authorization": f"Bearer {foreign}"}
        assert (await client.get("/v2/labels", headers=headers)).json()["items"] == []
        removal = await client.delete(f"/v2/labels/{label['id']}", headers=headers)
        assert removal.status_code == 404
    async with sign_in(keyed, "read") as page:
        assert 'action="/labels"' not in (await page.get(f"/trace/{trace}")).text
        assert (await page.post("/labels", data=body)).status_code == 403


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [("Correct", 1.0, None), ("", 1.0, None), ("a" * 65, 1.0, None), ("ok", float("nan"), None), ("ok", 1.0, "x" * 5_000)],
)  # fmt: skip
def test_a_label_that_cannot_be_is_refused(platform, name, value, note):
    (trace,) = traces_of(platform, record(platform, "Evening", {"a": [1.0]}))
    labels = Labels(platform.store, LOCAL_TEAM)
    with pytest.raises(UsageError):
        labels.put("run", trace, name, "local", value, note)
    with pytest.raises(NotFoundError):
        labels.put("checkpoint", "abcd1234", "ok", "local", 1.0, None)


def test_agreement_of_raters_and_of_raters_with_rewards(platform):
    traces = traces_of(platform, record(platform, "Evening", {"a": [1.0, 1.0, 0.0, 0.0]}))
    labels = Labels(platform.store, LOCAL_TEAM)
    for rater, values in {"ana": (1, 1, 0, 0), "bo": (1, 0, 0, 0)}.items():
        for trace, value in zip(traces, values, strict=True):
            labels.put("run", trace, "correct", rater, float(value), None)
    shown = agreement(labels, "correct")
    assert (shown["raters"], shown["runs"]) == ({"ana": 4, "bo": 4}, 4)
    by_pair = {tuple(pair["raters"]): pair for pair in shown["pairs"]}
    assert by_pair["ana", "bo"]["equal"] == 3
    assert by_pair["ana", "bo"]["kappa"] == pytest.approx(0.5)
    assert by_pair["ana", "reward"]["kappa"] == 1
    assert by_pair["ana", "reward"]["alpha"] == 1


def test_statistics_of_the_literature():
    """Cohen (1960) on a table of 35 + 15 of 50 equal; Krippendorff's example C, interval data: alpha 0.849."""
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert kappa(first, second) == pytest.approx(0.4)
    missing = None
    rows = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, missing, missing, missing],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, missing, 3],
        [missing, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, missing],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, missing],
    ]
    ratings = [
        {str(unit): value for unit, value in enumerate(row) if value is not None} for row in rows
    ]
    assert alpha(ratings) == pytest.approx(0.849, abs=5e-4)
    assert kappa([1, 1], [1, 1]) is None
    assert alpha([{"a": 1}, {"b": 1}]) is None


async def test_a_review_shows_one_run_after_another_until_all_are_labelled(platform):
    job = record(platform, "Evening", {"a": [1.0, 0.0, 1.0]}, task={"env": "shop", "id": "buy", "args": {}})  # fmt: skip
    record(platform, "Morning", {"b": [1.0]}, task={"env": "mail", "id": "send", "args": {}})
    query = {"text": "env:shop", "name": "correct", "values": "1,0.5,0"}
    async with browse(platform.app) as client:

        async def shown(**more):
            return (await client.get("/review.json", params={**query, **more})).json()

        first = await shown()
        assert (first["total"], first["done"], first["choices"]) == (3, 0, [1, 0.5, 0])
        skipped = await shown(after=first["run"]["trace_id"])
        assert skipped["run"]["trace_id"] != first["run"]["trace_id"]
        seen = set()
        while (run := (await shown())["run"]) is not None:
            assert run["trace_id"] not in seen
            seen.add(run["trace_id"])
            form = {"kind": "run", "subject": run["trace_id"], "name": "correct", "value": "0.5", "back": "/review?text=env%3Ashop"}  # fmt: skip
            put = await client.post("/labels", data=form)
            assert put.headers["location"] == "/review?text=env%3Ashop"
        assert seen == set(traces_of(platform, job))
        assert (
            "Every run of this search is labelled."
            in (await client.get("/review", params=query)).text
        )
        for wrong in ({"text": "toll:x"}, {"name": "X"}, {"values": "high"}, {"values": ""}):
            assert (await shown(**wrong))["problem"] is not None
        for back in ("https://example.com", "//example.com", "/\\example.com"):
            form = {"kind": "run", "subject": seen.copy().pop(), "name": "ok", "back": back}
            assert (await client.post("/labels", data=form)).headers["location"] == "/jobs"


def say(trace, text, prompt="Buy a kettle"):
    """Return the lines of a run's steps: a prompt, and an answer."""
    steps = (
        {"source": "user", "messages": [{"role": "user", "content": prompt}]},
        {"source": "agent", "content": text},
    )
    return b"".join(
        encode_event(b"S", trace, number, orjson.dumps({"step_id": number, **step}))
        for number, step in enumerate(steps, 1)
    )


def test_labels_become_tasks_conversations_and_preferences(platform, monkeypatch):
    task = {"env": "shop", "id": "buy", "args": {"n": 1}}
    traces = traces_of(platform, record(platform, "Evening", {"a": [1.0, 0.0, 0.5]}, task=task))
    labels = Labels(platform.store, LOCAL_TEAM)
    for trace, value in zip(traces, (1.0, 0.0, 0.5), strict=True):
        ingest(platform.store, say(trace, f"answer {value}"), LOCAL_TEAM)
        labels.put("run", trace, "correct", "ana", value, None)
    assert dataset(labels, "correct", "taskset", None, None) == [{**task, "slug": "a"}]
    (best,) = dataset(labels, "correct", "sft", 0.9, None)
    assert best["value"] == 1
    assert best["messages"] == [
        {"role": "user", "content": "Buy a kettle"},
        {"role": "assistant", "content": "answer 1.0"},
    ]
    (pair,) = dataset(labels, "correct", "preferences", None, None)
    assert pair["prompt"] == [{"role": "user", "content": "Buy a kettle"}]
    assert [part[0]["content"] for part in (pair["chosen"], pair["rejected"])] == [
        "answer 1.0",
        "answer 0.0",
    ]
    assert dataset(labels, "absent", "sft", None, None) == []
    labels.put("run", traces[1], "correct", "bo", 1.0, None)
    (pair,) = dataset(labels, "correct", "preferences", None, None)
    assert pair["values"] == [1, 0.5]
    with platform.store.begin() as connection:
        private = tables.runs.c.trace_id == traces[2]
        connection.execute(sa.update(tables.runs).where(private).values(may_train=False))
    (pair,) = dataset(labels, "correct", "preferences", None, None)
    assert pair["rejected"][0]["content"] == "answer 0.0"
    assert len(dataset(labels, "correct", "sft", None, None)) == 2
    assert len(dataset(labels, "correct", "taskset", None, None)) == 1
    monkeypatch.setattr(datasets, "MOST_BYTES", 100)
    with pytest.raises(UsageError, match="Take fewer"):
        dataset(labels, "correct", "sft", None, None)


def test_the_best_threshold_has_the_largest_kappa():
    best = best_threshold(
        [(0.1, False), (0.2, False), (0.3, True), (0.4, False), (0.8, True), (0.9, True)]
    )
    # 0.25 and 0.6 have 5 equal verdicts of 6 each: the lowest counts.
    assert best.threshold == pytest.approx(0.25)
    assert (best.equal, best.missed, best.wrongly_good) == (5, 0, 1)
    assert best.kappa == pytest.approx(2 / 3)
    alike = best_threshold([(0.5, True), (0.5, False)])
    assert (alike.threshold, alike.kappa) == (0.5, 0.0)


def test_thresholds_are_judged_on_runs_that_did_not_choose_them():
    separable = [(place / 100, place >= 60) for place in range(100)]
    assert held_out(separable) == pytest.approx(0.99, abs=0.011)
    random = [(value, bool(place % 2)) for place, (value, _) in enumerate(separable)]
    assert held_out(random) < 0.65
    assert held_out(separable[:4]) is None


async def test_a_graders_calibration_is_of_people_alone(platform):
    traces = traces_of(platform, record(platform, "Evening", {"a": [0.2, 0.4, 0.7, 0.9]}))
    labels = Labels(platform.store, LOCAL_TEAM)
    rewards = {
        trace: records.find_run(platform.store, LOCAL_TEAM, trace)["reward"] for trace in traces
    }
    for trace, reward in rewards.items():
        labels.put("run", trace, "correct", "ana", float(reward > 0.5), None)
        labels.put("run", trace, "correct", "review:m", 0.0 if reward > 0.8 else 1.0, None)
    async with browse(platform.app) as client:

        async def shown(**query):
            answer = await client.get("/v2/labels/calibration", params=query)
            return answer.json()

        by_reward = await shown(name="correct")
        assert by_reward["threshold"] == pytest.approx(0.55)
        assert (by_reward["equal"], by_reward["kappa"], by_reward["good"]) == (4, 1.0, 2)
        assert by_reward["few"]
        by_model = await shown(name="correct", grader="review:m")
        assert (by_model["runs"], by_model["equal"]) == (4, 2)
        assert "No run has people's label" in (await shown(name="other"))["detail"]
        assert "value of 'style'" in (await shown(name="correct", grader="style"))["detail"]
        for trace in traces:
            labels.put("run", trace, "kind", "ana", 1.0, None)
        assert "all 4 labelled runs are good" in (await shown(name="kind"))["detail"]
