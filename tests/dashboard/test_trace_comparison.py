"""Two runs of one task side by side."""

import re

import pytest
from tests.dashboard.made_traces import at, conversation, long_trace, put_run


def other_way():
    """The same run up to its first answer, and another one from there on."""
    steps = conversation()
    steps[4] = {"source": "agent", "content": "I give up.", "tool_calls": [], **at(2.4)}
    graded = {"score": 0.1, "subscores": [{"name": "answer", "value": 0.0, "weight": 3}]}
    steps[5] = {
        "source": "task",
        "task_call": {"phase": "evaluate", "name": "count", "result": graded},
        **at(3),
    }
    return steps[:6]


@pytest.mark.slow
async def test_what_two_runs_have_in_common_is_shown_once_and_then_where_they_part(platform, web):
    one, other = (put_run(platform.store, steps) for steps in (conversation(), other_way()))
    page = (await web.get(f"/trace/{one}/compare/{other}")).text
    assert "The first 4 steps say and do the same" in page
    assert page.count("I look at the file.") == 1
    parts = page[page.index('id="parting"') :]
    assert 'id="a-step-5"' in parts
    assert 'id="b-step-5"' in parts
    assert "I give up." in parts
    assert "Over before." in parts


@pytest.mark.slow
async def test_times_and_ids_of_calls_are_no_difference(platform, web):
    again = conversation()
    for number, step in enumerate(again):
        step |= at(100 + number, 3)
    again[2]["tool_calls"] = [{**again[2]["tool_calls"][0], "id": "another"}]
    again[3]["call"] = {**again[3]["call"], "id": "another"}
    one, other = (put_run(platform.store, steps) for steps in (conversation(), again))
    assert (await web.get(f"/trace/{one}/compare/{other}.json")).json()["same"] == 7


async def test_measures_and_subscores_stand_beside_each_other(platform, web):
    one, other = (put_run(platform.store, steps) for steps in (conversation(), other_way()))
    found = (await web.get(f"/trace/{one}/compare/{other}.json")).json()
    assert {"name": "Reward", "kind": "reward", "one": 0.85, "other": 0.1} in found["measures"]
    assert {"name": "answer", "depth": 0, "one": 1.0, "other": 0.0} in found["subscores"]
    assert {"name": "polite", "depth": 1, "one": 0.0, "other": None} in found["subscores"]


async def test_long_runs_come_piece_by_piece(platform, web):
    one, other = (put_run(platform.store, long_trace(120, 0)) for _ in range(2))
    address, numbers = f"/trace/{one}/compare/{other}", []
    while address:
        page = (await web.get(address)).text
        numbers += [int(number) for number in re.findall(r'id="a-step-(\d+)"', page)]
        more = re.search(r'hx-get="([^"]+/compare/[^"]+)"', page)
        address = more and more[1]
    assert numbers == list(range(1, 121))


async def test_the_form_of_a_run_leads_beside_another_and_different_tasks_are_told(platform, web):
    one = put_run(platform.store, conversation())
    other = put_run(platform.store, [], slug="another")
    answer = await web.get(f"/trace/{one}/compare", params={"other": other})
    assert answer.headers["location"] == f"/trace/{one}/compare/{other}"
    assert "played different tasks" in (await web.get(answer.headers["location"])).text
    outside = await web.get(f"/trace/{one}/compare", params={"other": "//evil.example/x"})
    assert outside.headers["location"].startswith(f"/trace/{one}/compare/%2F%2F")
