"""Comparisons of runs over the routes and the page: append-only, shown in random order, and counted by majority."""

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import browse
from tests.dashboard.recorded import record
from tests.platform.labels.test_labels import keyed, platform, say, traces_of

from hud.errors import UsageError
from hud_platform.access.teams import Teams
from hud_platform.labels.comparisons import Comparisons, comparison_agreement, preferred
from hud_platform.labels.datasets import compared_pairs
from hud_platform.store import tables
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

__all__ = ["keyed", "platform"]

TASK = {"env": "shop", "id": "buy", "args": {"n": 1}}
OTHER = {**TASK, "args": {"n": 2}}


def compared(platform, traces, choices):
    """Return the comparisons of a team; `choices`: rater to choices between the first run and each other one."""
    comparisons = Comparisons(platform.store, LOCAL_TEAM)
    for rater, of_rater in choices.items():
        for other, choice in zip(traces[1:], of_rater, strict=False):
            comparisons.add(traces[0], other, choice, "better", rater, shuffled=True)
    return comparisons


def test_most_people_decide_and_ties_skips_and_models_do_not(platform):
    traces = traces_of(platform, record(platform, "Evening", {"a": [1.0] * 6}, task=TASK))
    comparisons = compared(
        platform,
        traces,
        {
            "ana": ("left", "right", "left", "tie", "skip"),
            "bo": ("left", "right", "right", "tie", "tie"),
            "cleo": ("right", "tie"),
            "review:m": ("right", "left", "left", "left", "left"),
        },
    )
    rows = {
        frozenset((row["better"], row["worse"])): row for row in preferred(comparisons, "better")
    }
    first, second = (rows[frozenset((traces[0], other))] for other in traces[1:3])
    assert len(rows) == 2
    assert (first["better"], first["for"], first["against"]) == (traces[0], 2, 1)
    assert (second["better"], second["for"], second["against"]) == (traces[2], 2, 0)
    # Whichever side the run is on, the newest comparison of a rater counts; earlier ones stay on record.
    before = comparisons.page()[1]
    for rater in ("ana", "bo"):
        comparisons.add(traces[1], traces[0], "left", "better", rater, shuffled=True)
    rows = preferred(comparisons, "better")
    assert {row["better"]: row["for"] for row in rows} == {traces[1]: 3, traces[2]: 2}
    assert {row["worse"] for row in rows} == {traces[0]}
    assert comparisons.page()[1] == before + 2
    assert preferred(comparisons, "politer") == []


def test_agreement_does_not_depend_on_the_sides_and_the_share_of_the_left_one_is_of_random_orders(
    platform,
):
    traces = traces_of(platform, record(platform, "Evening", {"a": [1.0] * 5}, task=TASK))
    choices = {"ana": ("left", "left", "right", "tie"), "bo": ("left", "right", "right", "skip")}
    comparisons = compared(platform, traces, choices)
    comparisons.add(traces[1], traces[2], "left", "better", "cleo", shuffled=False)
    shown = comparison_agreement(comparisons, "better")
    assert (shown["raters"], shown["compared"]) == ({"ana": 4, "bo": 3, "cleo": 1}, 5)
    (pair,) = shown["pairs"]
    assert (pair["raters"], pair["runs"], pair["equal"]) == (["ana", "bo"], 3, 2)
    assert pair["kappa"] == pytest.approx(1 / 3)
    # 6 units with both orders: D_o = 2 * 2^2 * 2 / 12 = 4/3, D_e = (6 * 6 * 4 * 2) / (12 * 11) = 24/11.
    assert pair["alpha"] == pytest.approx(1 - (4 / 3) / (24 / 11))
    assert (shown["left"]["share"], shown["left"]["choices"]) == (0.5, 6)
    assert shown["left"]["low"] < 0.5 < shown["left"]["high"]

    turned = Comparisons(platform.store, LOCAL_TEAM)
    for row in comparisons.page()[0][::-1]:
        choice = {"left": "right", "right": "left"}.get(row["choice"], row["choice"])
        turned.add(row["right_id"], row["left_id"], choice, "turned", row["rater"], shuffled=True)
    other = comparison_agreement(turned, "turned")
    assert (other["alpha"], other["pairs"]) == (shown["alpha"], shown["pairs"])


def test_runs_that_cannot_be_compared_are_refused(platform):
    (first, second) = traces_of(
        platform, record(platform, "Evening", {"a": [1.0, None]}, task=TASK)
    )
    (other,) = traces_of(platform, record(platform, "Morning", {"a": [1.0]}, task=OTHER))
    comparisons = Comparisons(platform.store, LOCAL_TEAM)
    measured = max(
        (first, second), key=lambda trace: trace in comparisons.tasks_of([first, second])
    )
    for right in {first, second} | {other}:
        with pytest.raises(UsageError, match="not two measured runs of one task"):
            comparisons.add(measured, right, "left", "better", "ana", shuffled=True)
    with pytest.raises(UsageError, match="A choice is one of left, right"):
        comparisons.add(measured, other, "both", "better", "ana", shuffled=True)
    with pytest.raises(UsageError, match="no name of a criterion"):
        comparisons.add(measured, other, "left", "B", "ana", shuffled=True)


async def test_comparisons_of_a_server_carry_the_name_of_the_key_and_stay_in_their_team(keyed):
    team = Teams(keyed.store).default().id
    other = Teams(keyed.store).find_or_create("other").id
    left, right = traces_of(
        keyed, record(keyed, "E", {"a": [1.0, 0.0]}, team=team, task=TASK), team
    )
    body = {"left": left[:12], "right": right[:12], "choice": "left"}
    async with browse(keyed.app) as client:

        async def send(key, **more):
            headers = {"authorization": f"Bearer {key}"}
            return await client.post("/v2/comparisons", json={**body, **more}, headers=headers)

        _, member = keyed.keys.mint("ana", team, scopes=("run",))
        _, reader = keyed.keys.mint("bo", team, scopes=("read",))
        _, foreign = keyed.keys.mint("eve", other, scopes=("admin",))
        added = (await send(member)).json()
        assert (added["rater"], added["left_id"], added["shuffled"]) == ("ana", left, False)
        assert (await send(reader)).status_code == 403
        assert (await send(foreign)).status_code == 404
        assert (await send(member, choice="both")).status_code == 422
        headers = {"authorization": f"Bearer {reader}"}
        rows = (await client.get("/v2/comparisons/preferred", headers=headers)).json()["items"]
        assert rows == [{"better": left, "worse": right, "for": 1, "against": 0}]
        headers = {"authorization": f"Bearer {foreign}"}
        assert (await client.get("/v2/comparisons", headers=headers)).json()["total"] == 0


async def test_the_page_shows_all_pairs_of_each_task_once_without_rewards_and_in_random_order(
    platform,
):
    traces = traces_of(platform, record(platform, "Evening", {"a": [1.0, 0.0, 0.5] * 3}, task=TASK))
    record(platform, "Morning", {"a": [1.0, 0.0]}, task=OTHER)
    record(platform, "Night", {"b": [1.0]})
    for number, trace in enumerate(traces):
        ingest(platform.store, say(trace, f"answer {number}"), LOCAL_TEAM)
    sides, seen = [], set()
    async with browse(platform.app) as client:
        page = await client.get("/review/pairs", params={"text": "env:shop"})
        assert "A is better" in page.text
        assert page.text.count("Buy a kettle") <= 1
        while (shown := (await client.get("/review/pairs.json")).json())["runs"]:
            assert (await client.get("/review/pairs.json")).json()["runs"] == shown["runs"]
            assert "reward" not in shown["runs"][0]
            left, right = (run["trace_id"] for run in shown["runs"])
            if left in traces:
                (text,) = shown["prompt"][-1]["texts"]
                assert text == {"kind": "user", "text": "Buy a kettle"}
                last = shown["runs"][0]["steps"][-1]["texts"][-1]["text"]
                assert last == f"answer {traces.index(left)}"
            seen.add(frozenset((left, right)))
            sides.append(left < right)
            form = {"left": left, "right": right, "name": "better", "choice": "left" if len(seen) % 2 else "skip"}  # fmt: skip
            sent = await client.post("/review/pairs", data={**form, "back": "/review/pairs?text=a"})
            assert sent.headers["location"] == "/review/pairs?text=a"
            if len(seen) == 2:
                # One pair of each task first.
                assert len({pair & set(traces) == pair for pair in seen}) == 2
        assert len(seen) == shown["total"] == shown["done"] == 9 * 8 // 2 + 1
        assert 8 < sum(sides) < 30
        assert shown["agreement"]["left"] | {"low": 0, "high": 0} == {"share": 1, "choices": 19, "low": 0, "high": 0}  # fmt: skip
        assert "You compared all pairs" in (await client.get("/review/pairs")).text
        for wrong in ({"text": "toll:x"}, {"name": "X"}):
            shown = (await client.get("/review/pairs.json", params=wrong)).json()
            assert shown["problem"] is not None


def test_compared_runs_become_pairs_of_preferences(platform):
    traces = traces_of(platform, record(platform, "Evening", {"a": [0.0, 1.0, 1.0, 1.0, 1.0]}, task=TASK))  # fmt: skip
    prompts = ["Buy a kettle"] * 3 + ["Buy a pot", "Buy a kettle"]
    for number, (trace, prompt) in enumerate(zip(traces, prompts, strict=True)):
        ingest(platform.store, say(trace, f"answer {number}", prompt), LOCAL_TEAM)
    with platform.store.begin() as connection:
        private = tables.runs.c.trace_id == traces[4]
        connection.execute(sa.update(tables.runs).where(private).values(may_train=False))
    comparisons = compared(
        platform,
        traces,
        {"ana": ("left", "right", "left", "left"), "bo": ("left", "tie", "left", "left")},
    )
    pairs = compared_pairs(comparisons, "better")
    prompt = [{"role": "user", "content": "Buy a kettle"}]
    answers = [[{"role": "assistant", "content": f"answer {number}"}] for number in range(3)]
    # The fourth run has another prompt, and the fifth may not be trained on.
    assert sorted(pairs, key=lambda pair: pair["votes"]) == [
        {"prompt": prompt, "chosen": answers[2], "rejected": answers[0], "votes": [1, 0]},
        {"prompt": prompt, "chosen": answers[0], "rejected": answers[1], "votes": [2, 0]},
    ]
    assert compared_pairs(comparisons, "politer") == []


async def test_the_route_of_compared_pairs_refuses_bounds_of_labels(platform):
    query = {"name": "better", "to": "comparisons"}
    async with browse(platform.app) as client:
        assert (await client.get("/v2/labels/dataset", params=query)).json()["items"] == []
        refused = await client.get("/v2/labels/dataset", params={**query, "least": 1})
        assert (refused.status_code, "comparisons have none" in refused.text) == (400, True)


async def test_the_page_says_where_nothing_of_a_run_differs(platform):
    record(platform, "Evening", {"a": [1.0, 1.0]}, task=TASK)
    async with browse(platform.app) as client:
        page = (await client.get("/review/pairs", params={"text": "env:shop"})).text
    assert page.count("Nothing that differs from the steps above.") == 2
