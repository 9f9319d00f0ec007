"""The tokens of a policy: coloured by how likely they were, and by what their run was worth to training."""

import re

import pytest
from tests.dashboard.made_traces import conversation, put_job, put_run

from hud.trace import new_id

TEXT = "There are 2 lines. Count them; löwe 🦁."


def drawn(step, ids):
    """What was drawn in a step: a sure token, a likely one, and the rest hardly believable."""
    return (step, ids, [-0.001, -0.2, *[-6.0] * (len(ids) - 2)], None)


def spans_of(page):
    tokens = re.search(r'<div class="tokens foreign">(.*?)</div>', page, re.S)[1]
    return re.findall(r'<span(?: class="(\w+)")? title="([^"]*)">(.*?)</span>', tokens, re.S)


async def a_policy(platform):
    """A model whose tokenizer the page can read, and the ids of a text in it."""
    from tokenizers import Tokenizer

    record = platform.registry.of("0" * 32).create("Tiny", [TEXT] * 40)
    ids = Tokenizer.from_file(str(record.folder / "tokenizer.json")).encode(TEXT).ids
    return record.slug, ids


async def test_tokens_are_read_by_the_tokenizer_of_the_model_and_coloured_by_logprob(platform, web):
    model, ids = await a_policy(platform)
    trace = put_run(platform.store, conversation(), samples=[drawn(3, ids)], model=model)
    assert "logprob" in (await web.get(f"/trace/{trace}")).text
    found = spans_of((await web.get(f"/trace/{trace}?tokens=logprob")).text)
    assert len(found) == len(ids)
    assert "".join(text for _, _, text in found).replace("\ufffd", "").startswith("There are 2")
    assert [level for level, _, _ in found[:3]] == ["", "s1", "s5"]
    assert f"token {ids[0]}; logprob -0.001, probability 99.9%" in found[0][1]


@pytest.mark.slow
async def test_without_the_tokenizer_the_ids_are_shown_and_it_is_said(platform, web):
    sample = (3, [11, 12], [-0.1, -0.2], new_id())
    trace = put_run(platform.store, conversation(), samples=[sample], model="elsewhere")
    page = (await web.get(f"/trace/{trace}?tokens=logprob")).text
    assert [text.strip() for _, _, text in spans_of(page)] == ["11", "12"]
    assert "so these are the ids" in page


@pytest.mark.slow
async def test_advantages_come_from_the_rewards_of_the_group(platform, web):
    job, group = put_job(platform.store, new_id()), new_id()
    known = {"job_id": job, "group_id": group}
    runs = [
        put_run(
            platform.store,
            conversation(),
            samples=[drawn(3, [5, 6, 7])],
            attempt=number,
            reward=reward,
            failure_kind=kind,
            stop_reason=stop,
            **known,
        )
        for number, (reward, kind, stop) in enumerate(
            [
                (1.0, None, "done"),
                (0.0, None, "done"),
                (0.5, None, "done"),
                (None, "environment", None),
                (0.0, "agent", "timeout"),
            ]
        )
    ]
    best = (await web.get(f"/trace/{runs[0]}?tokens=advantage")).text
    assert "Advantage +0.500: reward 1.000 against a mean of 0.500 over the 3 runs" in best
    assert {level for level, _, _ in spans_of(best)} == {"up3"}
    worst = (await web.get(f"/trace/{runs[1]}?tokens=advantage")).text
    assert "Advantage −0.500" in worst
    assert {level for level, _, _ in spans_of(worst)} == {"down3"}
    middle = (await web.get(f"/trace/{runs[2]}?tokens=advantage")).text
    assert {level for level, _, _ in spans_of(middle)} == {""}
    failed = (await web.get(f"/trace/{runs[3]}?tokens=advantage")).text
    assert "This run has no reward" in failed
    late = (await web.get(f"/trace/{runs[4]}?tokens=advantage")).text
    assert "This run failed (timeout), so its reward does not count" in late


@pytest.mark.slow
async def test_groups_without_spread_and_runs_without_a_group_say_why_there_is_no_advantage(
    platform, web
):
    job, group = put_job(platform.store, new_id()), new_id()
    known = {"job_id": job, "group_id": group, "samples": [drawn(3, [5, 6, 7])]}
    runs = [put_run(platform.store, conversation(), **known) for _ in range(2)]
    page = (await web.get(f"/trace/{runs[0]}?tokens=advantage")).text
    assert "the group gives no training signal" in page
    alone = put_run(platform.store, conversation(), samples=[drawn(3, [5, 6])])
    assert "has no group" in (await web.get(f"/trace/{alone}?tokens=advantage")).text


@pytest.mark.slow
async def test_tokens_are_escaped_too(platform, web):
    evil = "<script>alert(1)</script>"
    from tokenizers import Tokenizer

    record = platform.registry.of("0" * 32).create("Evil", [evil] * 40)
    ids = Tokenizer.from_file(str(record.folder / "tokenizer.json")).encode(evil).ids
    sample = (3, ids, [-0.1] * len(ids), None)
    trace = put_run(platform.store, conversation(), samples=[sample], model=record.slug)
    page = (await web.get(f"/trace/{trace}?tokens=logprob")).text
    assert "&lt;script" in page
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)


async def test_runs_of_no_policy_of_ours_offer_no_tokens(platform, web):
    trace = put_run(platform.store, conversation())
    assert "Tokens coloured by" not in (await web.get(f"/trace/{trace}")).text
    assert (await web.get(f"/trace/{trace}?tokens=nonsense")).status_code == 422
    assert (await web.get(f"/trace/{new_id()}?tokens=nonsense")).status_code == 404
