"""The gap between sampler and trainer, token by token: of the newest training pass over a run."""

import re

import numpy as np
import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.made_traces import conversation, put_run

from hud.trace import new_id
from hud.trace.sampled.token_columns import pack_ids, pack_logprobs
from hud_platform.access.teams import Teams
from hud_platform.store import tables
from hud_platform.store.trainer_logprobs import ComputedRun, PassWeights, record_pass

IDS = [11, 12, 13, 14]
SAMPLED = [-0.5, -1.0, -2.0, -3.0]
COMPUTED = [-0.5, -1.02, -1.7, -1.0]


def spans_of(page):
    tokens = re.search(r'<div class="tokens foreign">(.*?)</div>', page, re.S)[1]
    return re.findall(r'<span(?: class="(\w+)")? title="([^"]*)">', tokens)


def train(
    platform,
    trace,
    *,
    model=None,
    step=3,
    checkpoint=None,
    computed=COMPUTED,
    team=tables.LOCAL_TEAM,
):
    turn = (pack_ids(IDS), pack_logprobs(computed))
    weights = PassWeights(model or new_id(), step, checkpoint)
    record_pass(platform.store, team, weights, [ComputedRun(trace, [turn])])


@pytest.fixture
def run(platform):
    return put_run(platform.store, conversation(), samples=[(3, IDS, SAMPLED, None)])


async def test_each_token_has_its_gap_and_the_run_its_mean_p99_and_maximum(platform, web, run):
    model = platform.registry.of(tables.LOCAL_TEAM).create("Tiny", ["some text"] * 40)
    train(platform, run, model=model.id, checkpoint="abcdef12" * 4)
    page = (await web.get(f"/trace/{run}?tokens=gap")).text
    found = spans_of(page)
    assert [level for level, _ in found] == ["", "s2", "s4", "s5"]
    assert "logprob -1.000, probability 36.8%; trainer -1.020, gap 0.02" in found[1][1]
    gaps = [0.0, 0.02, 0.3, 2.0]
    said = re.search(r'<p class="notice">(.*?)</p>', page, re.S)[1]
    assert f"over 4 tokens: mean {np.mean(gaps):.3g}" in said
    assert f"99th percentile {np.quantile(gaps, 0.99):.3g}, largest 2." in said
    assert f"at step 3 of {model.slug}, checkpoint abcdef12." in said
    assert "0.2–0.7" in page  # What the colours mean.


async def test_a_window_that_is_fetched_later_has_the_gaps_too(platform, web, run):
    train(platform, run)
    window = (await web.get(f"/trace/{run}/steps?first=3&last=3&tokens=gap")).text
    assert [level for level, _ in spans_of(window)] == ["", "s2", "s4", "s5"]
    other = (await web.get(f"/trace/{run}?tokens=logprob")).text
    assert "trainer" not in spans_of(other)[0][1]


async def test_a_run_that_was_never_trained_on_says_so(platform, web, run):
    page = (await web.get(f"/trace/{run}?tokens=gap")).text
    assert "No gap can be shown: no training pass has computed this run" in page
    assert {level for level, _ in spans_of(page)} == {""}


async def test_tokens_that_were_not_trained_on_have_no_gap(platform, web, run):
    train(platform, run, computed=[float("nan"), -1.02, -1.7, -1.0])
    page = (await web.get(f"/trace/{run}?tokens=gap")).text
    assert "over 3 tokens" in page
    assert "gap" not in spans_of(page)[0][1]


async def test_a_sampler_that_told_no_logprobs_leaves_nothing_to_compare(platform, web):
    run = put_run(platform.store, conversation(), samples=[(3, IDS, [], None)])
    train(platform, run)
    page = (await web.get(f"/trace/{run}?tokens=gap")).text
    assert "no logprobs of the sampler are recorded" in page
    assert "a removed model" in page


async def test_the_page_has_the_gap_in_its_twin(platform, web, run):
    train(platform, run)
    answer = await web.get(f"/trace/{run}.json?tokens=gap")
    assert "over 4 tokens" in answer.json()["colour_notice"]


@pytest.mark.slow
async def test_another_team_neither_sees_nor_writes_it(keyed):
    team, other = Teams(keyed.store).default().id, Teams(keyed.store).find_or_create("others").id
    run = put_run(keyed.store, conversation(), samples=[(3, IDS, SAMPLED, None)], team=team)
    train(keyed, run, team=other)
    async with sign_in(keyed, team=team) as web:
        assert "No gap can be shown" in (await web.get(f"/trace/{run}?tokens=gap")).text
    train(keyed, run, team=team)
    async with sign_in(keyed, team=other) as web:
        assert (await web.get(f"/trace/{run}?tokens=gap")).status_code == 404
