"""The page of a run: what was said and done, what it was worth, and where to go from there."""

import json
import re
from datetime import timedelta

import pytest
from tests.dashboard.made_traces import (
    BEGAN,
    add_step,
    at,
    conversation,
    long_trace,
    put_job,
    put_run,
)
from tests.fleet.test_rollout_queue import played

from hud.trace import dashed, new_id
from hud_dashboard.trace.page import revision_of
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts.brought_events import Brought, store_events
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.store.telemetry import ingest_spans


async def seen(web, address, status=200):
    answer = await web.get(address)
    assert answer.status_code == status, answer.text
    return answer.text


def article(page, number):
    """The part of a page that shows one step."""
    found = re.search(rf'<article[^>]*id="step-{re.escape(str(number))}".*?</article>', page, re.S)
    assert found, f"step {number} is not on the page"
    return found[0]


# -- what a run is shown as ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_run_is_a_conversation_with_every_call_its_arguments_result_and_duration(
    platform, web
):
    page = await seen(web, f"/trace/{put_run(platform.store, conversation())}")
    assert "Count the lines of notes.txt." in article(page, 2)
    turn = article(page, 3)
    assert "I look at the file." in turn
    assert "120 → 24 tok" in turn
    assert "1.5 s" in turn
    assert re.search(r"<details class=\"fold reasoning\"><summary>Reasoning", turn)
    tool = article(page, 4)
    assert "ls -la\nwc -l notes.txt" in tool
    assert "2 notes.txt" in tool
    assert "400 ms" in tool
    assert "0.850" in article(page, 7)


async def test_a_step_shows_what_it_changed_in_files_and_in_the_state(platform, web):
    page = await seen(web, f"/trace/{put_run(platform.store, conversation())}")
    assert '<span class="add">+new line\n</span>' in article(page, 4)
    assert '<span class="del">-old line\n</span>' in article(page, 4)
    state = article(page, 5)
    assert "<del>2</del><ins>3</ins>" in state
    assert "open[0]" in state


async def test_a_summary_shows_where_the_conversation_was_cut(platform, web):
    steps = conversation()
    steps[2]["extra"] = {"compaction": {"tokens": 6100, "lost_turns": 1}}
    page = await seen(web, f"/trace/{put_run(platform.store, steps)}")
    assert "the conversation of 6,100 tokens was cut here; 1 turn not in it" in article(page, 3)
    assert "cut here" not in article(page, 4)
    steps[2]["extra"] = {"compaction": "<b>odd</b>"}
    page = await seen(web, f"/trace/{put_run(platform.store, steps)}")
    assert "cut here" not in article(page, 3)


async def test_the_grade_is_a_tree_of_subscores_with_reasons(platform, web):
    page = await seen(web, f"/trace/{put_run(platform.store, conversation())}")
    aside = page[page.index("<aside") : page.index("</aside>")]
    for words in ("answer", "75%", "The count is right.", "polite", "penalty 0.1"):
        assert words in aside
    assert aside.index("manner") < aside.index("brief") < aside.index("penalty")


async def test_the_grade_shows_the_rewards_of_turns(platform, web):
    grade = {"score": 0.5, "turn_rewards": [1.0, -0.5]}
    page = await seen(web, f"/trace/{put_run(platform.store, [], grade=grade)}")
    assert "Turns: 1.000 -0.500" in page
    for hostile in ("<b>", [10**400, "<b>"], {}):
        grade = {"score": 0.5, "turn_rewards": hostile}
        page = await seen(web, f"/trace/{put_run(platform.store, [], grade=grade)}")
        assert "Turns:" not in page


async def test_the_attempts_at_a_run_of_the_fleet_are_shown_with_what_ended_them(platform, web):
    rollouts, trace = Rollouts(platform.store), new_id()
    spec = {"env": "echo", "task": "say", "slug": "say", "agent": {"type": "openai", "config": {}}}
    rollouts.submit(LOCAL_TEAM, None, trace, None, spec)
    page = await seen(web, f"/trace/{trace}")
    assert "Attempt 1" not in page
    revisions = {revision_of(platform.store, LOCAL_TEAM, trace)}
    rollouts.lease_seconds = -1.0
    rollouts.take("<b>spot</b>")
    rollouts.lease_seconds = 30.0
    rollouts.take("leaving")
    rollouts.release("leaving", [trace])
    rollouts.take("steady")
    revisions.add(revision_of(platform.store, LOCAL_TEAM, trace))
    head = await seen(web, f"/trace/{trace}/head")
    said = re.findall(
        r"Attempt (\d), .*?\"foreign\">(.*?)</span>.*?<span class=\"tag \w*\">(.*?)<", head
    )
    assert said == [
        ("1", "&lt;b&gt;spot&lt;/b&gt;", "lost"),
        ("2", "leaving", "handed back"),
        ("3", "steady", "running"),
    ]
    lease = Lease(trace, "steady", 3)
    assert store_events(rollouts, [Brought(lease, played(trace))]) == [True]
    revisions.add(revision_of(platform.store, LOCAL_TEAM, trace))
    assert "finished" in await seen(web, f"/trace/{trace}/head")
    twin = (await web.get(f"/trace/{trace}.json")).json()
    assert [one["outcome"] for one in twin["attempts"]] == ["lost", "handed back", "ended"]
    assert len(revisions) == 3  # An open page notices each.


@pytest.mark.slow
async def test_a_call_without_a_result_says_so_and_shows_its_arguments(platform, web):
    page = await seen(web, f"/trace/{put_run(platform.store, conversation()[:3])}")
    assert "no result is recorded" in article(page, 3)
    assert "ls -la\nwc -l notes.txt" in article(page, 3)


@pytest.mark.slow
async def test_failed_steps_are_marked_and_listed_for_the_keyboard(platform, web):
    trace = put_run(platform.store, conversation())
    assert "failed" in article(await seen(web, f"/trace/{trace}"), 5).split(">")[0]
    assert 'data-failed="5"' in await seen(web, f"/trace/{trace}/timeline")


async def test_the_timeline_begins_with_the_environments_start(platform, web):
    steps = conversation()
    began = round((BEGAN - timedelta(seconds=3.6)).timestamp() * 1e6)
    trace = put_run(platform.store, steps, started_at=began)
    view = (await web.get(f"/trace/{trace}/timeline.json")).json()["timeline"]
    assert (view["start_seconds"], view["seconds"]) == (3.6, 7.2)
    (start,) = [lane["path"] for lane in view["paths"] if lane["kind"] == "start"]
    assert start.startswith("M0.0 25h500.0")
    assert view["places"][0][1] > 500
    assert "the environment started in 3.6 s" in await seen(web, f"/trace/{trace}/timeline")
    # Without a setup, the time before the first step is not known to be the environment's.
    for known, kept in (({"started_at": began}, steps[2:]), ({}, steps)):
        trace = put_run(platform.store, kept, **known)
        view = (await web.get(f"/trace/{trace}/timeline.json")).json()["timeline"]
        assert view["start_seconds"] == 0


@pytest.mark.slow
async def test_nested_runs_open_in_place_as_deep_as_they_go(platform, web):
    inner = {"trace_id": "d" * 32, "steps": [{"step_id": 1, "source": "agent", "content": "deep"}]}
    deep = {"step_id": 2, "source": "subagent", "subagent": inner, "extra": {"tool": "deeper"}}
    nested = {
        "trace_id": "c" * 32,
        "steps": [{"step_id": 1, "source": "agent", "content": "I read."}, deep],
    }
    extra = {"tool": "ask_reader", "model": "bookworm", "reward": 0.5, "failure_kind": None}
    steps = [{"source": "subagent", "subagent": nested, "extra": extra, **at(0)}]
    trace = put_run(platform.store, steps)
    page = article(await seen(web, f"/trace/{trace}"), 1)
    assert "I read." not in page
    address = re.search(r'hx-get="([^"]+/nested)"', page)[1]
    opened = await seen(web, address)
    assert "I read." in article(opened, "1.1")
    deeper = re.search(r'hx-get="([^"]+/nested)"', article(opened, "1.2"))[1]
    assert "deep" in article(await seen(web, deeper), "1.2.1")
    assert (await web.get(f"/trace/{trace}/steps/1.2.1.json")).json()["content"] == "deep"
    assert (await web.get(f"/trace/{trace}/steps/1.9.json")).status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("agent", "The run counts, with reward 0."),
        ("environment", "The environment failed: the run has no reward"),
        ("grader", "The grader failed: the run has no reward"),
        ("infrastructure", "The infrastructure failed: the run has no reward"),
    ],
)
async def test_a_failed_run_says_whose_fault_it_was_and_what_follows(platform, web, kind, said):
    known = {"failure_kind": kind, "status": "error", "error": "The socket closed."}
    page = await seen(web, f"/trace/{put_run(platform.store, conversation()[:4], **known)}")
    assert said in page
    assert "The socket closed." in page
    assert 'class="badge failed"' in page


async def test_runs_without_steps_and_runs_that_go_on_say_so(platform, web):
    assert "has no steps on record" in await seen(web, f"/trace/{put_run(platform.store)}")
    waiting = await seen(web, f"/trace/{put_run(platform.store, over=False)}")
    assert "No step is recorded yet." in waiting
    assert "data-events=" in waiting


@pytest.mark.slow
async def test_steps_of_other_clients_are_shown_as_far_as_they_are_understood(platform, web):
    steps = [
        {"source": "user", "messages": "only text"},
        {"source": "assistant", "content": "of no source that we know"},
        {"source": "tool", "call": {"name": "look"}, "result": "plain words"},
        {
            "source": "tool",
            "result": {"content": [{"type": "resource", "resource": {"text": "a resource"}}]},
        },
        {
            "source": "agent",
            "tool_calls": "none",
            "usage": {"prompt_tokens": "many"},
            "content": [1],
        },
    ]
    trace = put_run(platform.store, steps, first=0, task=None, model=None, slug=None)
    page = await seen(web, f"/trace/{trace}")
    for words in ("only text", "of no source that we know", "plain words", "a resource"):
        assert words in page
    assert "times are not recorded" in await seen(web, f"/trace/{trace}/timeline")


@pytest.mark.slow
async def test_a_run_is_found_by_what_clients_print(platform, web):
    trace = put_run(platform.store, conversation())
    assert "count-straw" in await seen(web, f"/trace/{dashed(trace)}")
    assert "count-straw" in await seen(web, f"/trace/{trace[:10]}")
    assert (await web.get(f"/traces/{trace}")).headers["location"] == f"/trace/{trace}"
    assert (await web.get(f"/trace/{new_id()}")).status_code == 404


async def test_the_page_leads_to_the_runs_before_and_after_it_and_to_those_of_its_task(
    platform, web
):
    job = put_job(platform.store, new_id())
    runs = [
        put_run(
            platform.store,
            conversation(),
            job_id=job,
            attempt=number,
            started_at=1_000_000 * (number + 1),
            failure_kind="grader" if number == 3 else None,
        )
        for number in range(4)
    ]
    found = (await web.get(f"/trace/{runs[1]}.json")).json()
    assert found["neighbours"] == {
        "previous": runs[0],
        "next": runs[2],
        "previous_failed": None,
        "next_failed": runs[3],
    }
    assert [one["trace_id"] for one in found["siblings"]] == runs
    page = await seen(web, f"/trace/{runs[1]}")
    assert f'data-key="]" href="/trace/{runs[2]}"' in page


@pytest.mark.slow
async def test_the_run_whose_reward_is_furthest_is_offered_to_be_looked_at_beside(platform, web):
    job = put_job(platform.store, new_id())
    one, _, worst = (
        put_run(platform.store, conversation(), job_id=job, reward=reward)
        for reward in (0.9, 0.5, 0.1)
    )
    assert f'<option value="{worst}" selected>' in await seen(web, f"/trace/{one}")


async def test_every_step_and_the_whole_run_are_there_as_json(platform, web):
    trace = put_run(platform.store, conversation(), samples=[(3, [7, 8], [-0.5, -0.25], None)])
    step = (await web.get(f"/trace/{trace}/steps/3.json")).json()
    assert step["reasoning"] == "First the listing, then the count."
    assert step["sample"]["output_token_ids"] == [7, 8]
    whole = (await web.get(f"/trace/{trace}/raw.json")).json()
    assert [one["step_id"] for one in whole["steps"]] == list(range(1, 8))
    assert whole["run"]["reward"] == 0.85


# -- long runs -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_long_run_comes_in_windows_that_together_hold_every_step_once(platform, web):
    trace = put_run(platform.store, long_trace(450, 10))
    page = await seen(web, f"/trace/{trace}")
    assert len(re.findall(r"<article", page)) == 100
    waiting = re.findall(r'hx-get="(/trace/[^"]+/steps\?first=[^"]+)"', page)
    numbers = [int(one) for one in re.findall(r'id="step-(\d+)"', page)]
    for address in waiting:
        part = await seen(web, address.replace("&amp;", "&"))
        numbers += [int(one) for one in re.findall(r'id="step-(\d+)"', part)]
    assert numbers == list(range(1, 451))


@pytest.mark.slow
async def test_a_step_far_down_is_opened_by_its_address(platform, web):
    trace = put_run(platform.store, long_trace(450, 10))
    page = await seen(web, f"/trace/{trace}?step=321")
    assert "Turn 320" in article(page, 321)
    assert 'id="step-1"' not in page


async def test_windows_are_cut_by_size_too_so_that_no_page_is_huge(platform, web):
    steps = [{"source": "agent", "content": f"{number} " + "x" * 1_500_000} for number in range(7)]
    page = await seen(web, f"/trace/{put_run(platform.store, steps)}")
    assert len(re.findall("<article", page)) == 2
    assert len(page) < 100_000
    assert "more characters" in article(page, 1)


# -- runs that go on -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_run_that_goes_on_brings_its_new_steps_only(platform, web):
    trace = put_run(platform.store, conversation()[:3], over=False)
    revision = (await web.get(f"/trace/{trace}.json")).json()["revision"]
    add_step(platform.store, trace, 4, conversation()[3])
    part = await seen(web, f"/trace/{trace}/steps?first=4")
    assert re.findall(r'id="step-(\d+)"', part) == ["4"]
    assert (await web.get(f"/trace/{trace}.json")).json()["revision"] != revision


@pytest.mark.slow
async def test_what_was_told_beside_the_steps_is_listed_with_the_files_that_changed(platform, web):
    trace = new_id()
    patch = {"path": "a.txt", "status": "added", "patch": "--- /dev/null\n+++ b/a.txt\n+hello\n"}
    span = {
        "name": "files",
        "span_id": "1" * 16,
        "start_time": "2026-01-02T03:04:05Z",
        "attributes": {
            "hud.schema": "hud.filetracking.v1",
            "hud.payload": json.dumps({"patches": [patch]}),
        },
    }
    ingest_spans(platform.store, LOCAL_TEAM, trace, [span])
    assert "Spans other than steps" in await seen(web, f"/trace/{trace}")
    page = await seen(web, f"/trace/{trace}/spans")
    assert "hud.filetracking.v1" in page
    assert '<span class="add">+hello' in page
