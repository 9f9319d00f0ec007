"""Comparisons read from the older policy to the newer one, and their verdicts agree with their counts."""

import re

import pytest
from tests.dashboard.recorded import record
from tests.dashboard.test_models import made, record_rewards
from tests.dashboard.test_train import make_model

COMPARE = "/models/m/compare"


@pytest.fixture
def trained(platform):
    """A model `m` whose head, its second checkpoint, is better than the base on nine of ten tasks."""
    model = make_model(platform)
    first = made(platform, model, 1)
    head = made(platform, model, 2, first)
    record_rewards(platform, model, None, {f"t{n}": 0.1 for n in range(10)})
    record_rewards(platform, model, head, {f"t{n}": 0.9 if n else 0.05 for n in range(10)})
    return model, first, head


@pytest.mark.slow
async def test_checkpoints_are_compared_from_the_base_to_the_head(trained, web):
    found = (await web.get(f"{COMPARE}.json")).json()
    assert (found["first"]["reference"], found["second"]["is_head"]) == ("base", True)
    assert found["comparison"]["difference"]["mean"] > 0
    assert found["tasks"]["counts"] == [9, 1, 0]
    page = (await web.get(COMPARE)).text
    assert "Got better" in page
    # The head is better: nothing beside that verdict offers to give it up.
    assert "Roll back" not in page


@pytest.mark.slow
async def test_a_head_that_is_worse_can_be_rolled_back_from_the_comparison(platform, web):
    model = make_model(platform)
    made(platform, model, 1)
    head = made(platform, model, 2, made(platform, model, 1))
    record_rewards(platform, model, None, {f"t{n}": 0.9 for n in range(10)})
    record_rewards(platform, model, head, {f"t{n}": 0.1 for n in range(10)})
    found = (await web.get(f"{COMPARE}.json")).json()
    assert found["candidate"] == "first"
    page = (await web.get(COMPARE)).text
    assert "Roll back to base" in page
    assert "data-confirm" not in page.split("Roll back to")[0].rpartition("<form")[2]


@pytest.mark.slow
async def test_the_parent_is_compared_where_the_base_was_not_measured(platform, web):
    model = make_model(platform)
    parent = made(platform, model, 1)
    head = made(platform, model, 2, parent)
    record_rewards(platform, model, parent, {"a": 0.2, "b": 0.3})
    record_rewards(platform, model, head, {"a": 0.6, "b": 0.7})
    found = (await web.get(f"{COMPARE}.json")).json()
    assert found["first"]["reference"] == parent
    assert found["second"]["reference"] == head
    assert found["comparison"]["difference"]["mean"] == pytest.approx(0.4)


@pytest.mark.slow
async def test_the_page_of_an_ancestor_compares_it_with_the_head_in_that_order(trained, web):
    _, first, head = trained
    page = (await web.get(f"/models/m?checkpoint={first}")).text
    assert f"compare?first={first}&amp;second={head}" in page


@pytest.mark.slow
async def test_a_checkpoint_is_not_compared_with_itself(trained, web):
    found = (await web.get(f"{COMPARE}.json?first=head&second=head")).json()
    assert found["comparison"] is None
    assert (
        "Both sides are the same checkpoint"
        in (await web.get(f"{COMPARE}?first=head&second=head")).text
    )


@pytest.mark.slow
async def test_one_shared_task_is_too_few_for_a_verdict_on_checkpoints(platform, web):
    model = make_model(platform)
    head = made(platform, model, 1)
    record_rewards(platform, model, None, {"a": 0.1})
    record_rewards(platform, model, head, {"a": 0.9})
    verdict = (await web.get(f"{COMPARE}.json")).json()["comparison"]["verdict"]
    assert "better" not in verdict


@pytest.mark.slow
async def test_each_task_of_two_checkpoints_links_to_its_two_transcripts(trained, web):
    found = (await web.get(f"{COMPARE}.json")).json()
    row = found["tasks"]["better"][0]
    before, after = row["traces"]
    for trace, reward in ((before, 0.1), (after, 0.9)):
        shown = (await web.get(f"/trace/{trace}.json")).json()
        assert shown["run"]["slug"] == row["slug"]
        assert shown["run"]["reward"] == reward
    page = (await web.get(COMPARE)).text
    assert f'href="/trace/{before}"' in page
    assert f'href="/trace/{after}"' in page
    assert f'href="/trace/{before}/compare/{after}"' in page
    assert (await web.get(f"/trace/{before}/compare/{after}")).status_code == 200


async def test_the_verdict_on_jobs_and_the_counts_of_tasks_agree(web, platform):
    """One run of each of 40 tasks: no task alone is beyond chance, yet the whole is."""
    before = record(platform, "before", {f"t{n}": [0.2] for n in range(40)}, age=9)
    after = record(platform, "after", {f"t{n}": [0.9 if n else 0.1] for n in range(40)})
    found = (await web.get(f"/jobs/compare.json?job={after}&job={before}")).json()
    (pairing,) = found["pairings"]
    assert pairing["verdict"] == "better"
    assert (pairing["better"], pairing["worse"], pairing["same"]) == (39, 1, 0)
    assert pairing["beyond_chance"] == {"better": 0, "worse": 0}


async def test_jobs_without_a_common_task_get_no_verdict(web, platform):
    one, two = (record(platform, name, {name: [1.0]}) for name in ("a", "b"))
    (pairing,) = (await web.get(f"/jobs/compare.json?job={one}&job={two}")).json()["pairings"]
    assert pairing["verdict"] is None
    page = (await web.get(f"/jobs/compare?job={one}&job={two}")).text
    assert "no shared task" in page
    assert "unclear</span>" not in page


async def test_of_one_common_task_its_runs_decide(web, platform):
    one = record(platform, "a", {"t": [0.0] * 5}, age=9)
    two = record(platform, "b", {"t": [1.0] * 5})
    (pairing,) = (await web.get(f"/jobs/compare.json?job={one}&job={two}")).json()["pairings"]
    assert pairing["verdict"] == "better"


async def test_the_job_of_the_earlier_checkpoint_comes_first_whenever_it_was_played(web, platform):
    model = make_model(platform)
    first = made(platform, model, 1)
    second = made(platform, model, 2, first)
    played = [
        record(platform, name, {"a": [0.5]}, model="m", checkpoint=checkpoint, age=age)
        for name, checkpoint, age in (("second", second, 9), ("first", first, 5), ("base", None, 1))
    ]
    address = "/jobs/compare.json?" + "&".join(f"job={one}" for one in played)
    assert [job["name"] for job in (await web.get(address)).json()["jobs"]] == [
        "base",
        "first",
        "second",
    ]
    turned = (await web.get(f"{address}&base={played[0]}")).json()
    assert [job["name"] for job in turned["jobs"]] == ["second", "base", "first"]


@pytest.mark.slow
async def test_each_task_of_two_jobs_links_to_its_two_transcripts(web, platform):
    before = record(platform, "before", {"a": [0.0, 0.5, 1.0], "b": [None]}, age=9)
    after = record(platform, "after", {"a": [0.25], "b": [1.0]})
    found = (await web.get(f"/jobs/compare.json?job={before}&job={after}")).json()
    (task,) = found["tasks"]
    # Of several runs the one whose reward is nearest to the mean.
    rewards = [
        (await web.get(f"/trace/{trace}.json")).json()["run"]["reward"]
        for trace in (task["trace"], task["changes"][0]["trace"])
    ]
    assert rewards == [0.5, 0.25]
    page = (await web.get(f"/jobs/compare?job={before}&job={after}")).text
    assert f'href="/trace/{task["trace"]}/compare/{task["changes"][0]["trace"]}"' in page


async def test_tasks_that_changed_come_first_and_the_same_ones_last(web, platform):
    before = record(platform, "before", {"same": [0.5], "up": [0.0], "down": [1.0]}, age=9)
    after = record(platform, "after", {"same": [0.5], "up": [0.4], "down": [0.1]})
    found = (await web.get(f"/jobs/compare.json?job={before}&job={after}")).json()
    assert [task["slug"] for task in found["tasks"]] == ["down", "up", "same"]


@pytest.mark.slow
async def test_a_clear_verdict_is_the_only_one(web, platform):
    """Each task alone may be chance; with the verdict on all of them, that is said of none."""
    tasks = {f"t{n}": [0.0, 0.1] for n in range(12)}
    before = record(platform, "before", tasks, age=9)
    clear = record(platform, "clear", {slug: [0.9, 1.0] for slug in tasks})
    unclear = record(platform, "unclear", {**tasks, "t0": [0.2, 0.4]})
    page = (await web.get(f"/jobs/compare?job={before}&job={clear}")).text
    assert "▲ better" in page
    assert "may be chance" not in page
    assert "For a single task" not in page
    page = (await web.get(f"/jobs/compare?job={before}&job={unclear}")).text
    assert "may be chance" in page
    assert "For a single task" in page


async def test_the_plot_of_a_difference_has_a_legend(web, platform):
    jobs = [record(platform, name, {"a": [0.0, 1.0]}) for name in ("a", "b")]
    page = (await web.get(f"/jobs/compare?job={jobs[0]}&job={jobs[1]}")).text
    head = page.partition('class="later plot-key">')[2].partition("</th>")[0]
    assert re.sub(r"<[^>]+>|\s+", " ", head).split() == ["Reward", "0", "to", "1:", "A", "B"]
