"""What agents, environments and clients recorded cannot hurt who looks at it, and is not shown to who may not look."""

import json
import re

import pytest
import sqlalchemy as sa
from tests.dashboard.conftest import sign_in
from tests.dashboard.made_traces import at, image, long_trace, png, put_run, text

from hud_platform.access.teams import Teams
from hud_platform.store import tables

EVIL = "<script>alert(1)</script><svg onload=alert(2)>\"'><img src=x onerror=alert(3)>\u202egpj.exe\x00\x1b[31m"


def put_stored(store, step, **known):
    """Put a run with a step into a store that ingestion refuses today, and earlier releases took."""
    trace = put_run(store, [{"source": "tool"}], **known)
    rows = tables.steps
    payload = json.dumps({"step_id": 1, **step}).encode()
    store.write(sa.update(rows).where(rows.c.trace_id == trace).values(payload=payload))
    return trace


async def seen(web, address, status=200):
    answer = await web.get(address)
    assert answer.status_code == status, answer.text
    return answer.text


# -- what agents and environments write is hostile ---------------------------------------------------------


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e300], ids=["large", "small", "float"])
async def test_numbers_beyond_floats_are_no_scores(platform, web, number):
    grade = {"score": number, "subscores": [{"name": "a", "value": number, "weight": number}]}
    run = put_run(platform.store, [], grade=grade)
    await seen(web, f"/trace/{run}")
    await seen(web, f"/trace/{run}.json")


@pytest.mark.slow
async def test_nothing_that_anybody_wrote_becomes_markup(platform, web):
    call = {"id": EVIL, "name": EVIL, "arguments": {EVIL: EVIL}}
    part = {"name": EVIL, "value": "NaN", "weight": EVIL, "info": {"reason": EVIL}}
    patch = {"path": EVIL, "status": EVIL, "patch": f"+{EVIL}"}
    steps = [
        {
            "source": "user",
            "messages": [{"role": EVIL, "content": [text(EVIL), {"type": EVIL, "x": EVIL}]}],
            **at(0),
        },
        {
            "source": "agent",
            "content": EVIL,
            "reasoning": EVIL,
            "refusal": EVIL,
            "model": EVIL,
            "finish_reason": EVIL,
            "tool_calls": [call],
            "citations": [{"text": EVIL, "source": EVIL, "title": EVIL}],
            **at(1),
        },
        {
            "source": "tool",
            "call": {"id": "other", "name": EVIL, "arguments": EVIL},
            "result": {"content": [text(EVIL)], "structuredContent": {EVIL: EVIL}},
            "error": EVIL,
            "extra": {"state": {EVIL: EVIL}, "files": {"patches": [patch]}, EVIL: EVIL},
            **at(2),
        },
        {"source": "tool", "extra": {"state": {EVIL: 2}}, **at(3)},
        {"source": EVIL, "extra": {"not_understood": EVIL}, "started_at": EVIL},
        {
            "source": "subagent",
            "subagent": {"trace_id": EVIL, "status": EVIL, "steps": [{"content": EVIL}]},
            "extra": {"tool": EVIL, "model": EVIL, "slug": EVIL, "failure_kind": EVIL},
        },
        {
            "source": "task",
            "task_call": {
                "phase": "evaluate",
                "name": EVIL,
                "arguments": {"answer": EVIL},
                "result": {"content": EVIL, "subscores": [part], "info": {EVIL: EVIL}, EVIL: EVIL},
            },
        },
    ]
    trace = put_run(
        platform.store, steps, slug=EVIL, model=EVIL, error=EVIL, content=EVIL, stop_reason="x"
    )
    for address in ("", "/timeline", "/steps", "/head", "/steps/6/nested", "/spans", "?tokens=gap"):
        page = await seen(web, f"/trace/{trace}{address}")
        assert not re.findall(r"<script(?![^>]*\bsrc=\"/static/)", page), address
        assert "<svg onload" not in page, address
        assert "<img src=x" not in page, address
        assert not re.findall(r"<[a-z][^<>]*\son[a-z]+=", page), address
        assert not re.findall(r"<[a-z][^<>]*\sstyle=", page), address
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", page), address


@pytest.mark.slow
async def test_huge_strings_are_cut_with_a_way_to_the_whole(platform, web):
    steps = [{"source": "tool", "result": {"content": [text("A" * 3_000_000)]}}]
    trace = put_run(platform.store, steps)
    page = await seen(web, f"/trace/{trace}")
    assert len(page) < 60_000
    assert f'<a href="/trace/{trace}/steps/1.json">Show all</a>' in page


async def test_payloads_that_are_nested_very_deep_break_nothing(platform, web):
    deep = {}
    for _ in range(240):
        deep = {"a": [deep]}
    step = {"source": "tool", "result": deep, "extra": {"state": deep, "x": deep}}
    assert 'id="step-1"' in await seen(web, f"/trace/{put_stored(platform.store, step)}")


# -- images ------------------------------------------------------------------------------------------------


def shown(page):
    return re.findall(r'<img src="([^"]+)"', page)


@pytest.mark.slow
async def test_images_are_served_by_their_content_and_kept(platform, web):
    small, large = png(), png(400, 300, 7) + bytes(40_000)
    steps = [
        {
            "source": "tool",
            "result": {"content": [image(small), image(large)]},
            "extra": {"screenshot": image(small)},
        }
    ]
    trace = put_run(platform.store, steps)
    addresses = shown(await seen(web, f"/trace/{trace}/steps"))
    assert len(addresses) == 3
    answers = [await web.get(address) for address in addresses]
    assert [answer.content for answer in answers] == [small, large, small]
    headers = answers[0].headers
    assert headers["content-type"] == "image/png"
    assert headers["x-content-type-options"] == "nosniff"
    assert "immutable" in headers["cache-control"]
    assert headers["content-disposition"].startswith("inline; filename=")
    assert headers["content-security-policy"].startswith("default-src 'none'")
    again = await web.get(addresses[0], headers={"if-none-match": headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "content",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        b"<html><script>alert(1)</script></html>",
        png(declared=(60_000, 60_000)),
        png(declared=(0, 10)),
        b"GIF89a\xff\xff\xff\xff" + bytes(100),
        b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(8),
        b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff",
        b"",
    ],
)
async def test_what_is_no_raster_image_or_declares_a_billion_pixels_is_never_served(
    platform, web, content
):
    steps = [{"source": "tool", "result": {"content": [image(content)]}}]
    (address,) = shown(await seen(web, f"/trace/{put_run(platform.store, steps)}/steps"))
    answer = await web.get(address, headers={"accept": "image/*"})
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.slow
async def test_an_image_is_called_what_it_is_whatever_its_sender_called_it(platform, web):
    steps = [{"source": "tool", "result": {"content": [image(png(), "text/html")]}}]
    (address,) = shown(await seen(web, f"/trace/{put_run(platform.store, steps)}/steps"))
    assert (await web.get(address)).headers["content-type"] == "image/png"


@pytest.mark.slow
async def test_screenshots_are_listed_for_the_scrubber_in_the_order_of_the_steps(platform, web):
    trace = put_run(platform.store, long_trace(60, 6))
    found = (await web.get(f"/trace/{trace}/timeline.json")).json()["timeline"]["shots"]
    assert [number for number, _ in found] == sorted(number for number, _ in found)
    assert len(found) >= 5
    page = await seen(web, f"/trace/{trace}/timeline")
    assert f'max="{len(found) - 1}"' in page


# -- who may look --------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_other_teams_see_nothing_of_a_run_and_none_of_its_images(keyed):
    teams = Teams(keyed.store)
    mine, other = teams.default().id, teams.find_or_create("others").id
    trace = put_run(keyed.store, [{"source": "tool", "result": {"content": [image()]}}], team=mine)
    async with sign_in(keyed, "read", mine) as client:
        (address,) = shown(await seen(client, f"/trace/{trace}/steps"))
        assert (await client.get(address)).status_code == 200
    async with sign_in(keyed, "read", other) as client:
        for part in ("", ".json", "/steps", "/timeline", "/raw.json", "/steps/1.json", "/spans"):
            assert (await client.get(f"/trace/{trace}{part}")).status_code == 404, part
        assert (await client.get(address)).status_code == 404
        assert (await client.get(f"/events/trace/{trace}")).status_code == 404


async def test_a_blob_of_another_team_is_not_opened_by_its_name(keyed):
    mine = Teams(keyed.store).default().id
    name = "1" * 32 + "/attachments/" + "a" * 64
    keyed.store.blobs.put(name, b"c2VjcmV0")
    step = {"source": "tool", "result": {"content": [{"type": "image", "hud.blob": name}]}}
    trace = put_stored(keyed.store, step, team=mine)
    async with sign_in(keyed, "read", mine) as client:
        (address,) = shown(await seen(client, f"/trace/{trace}/steps"))
        assert (await client.get(address)).status_code == 404
