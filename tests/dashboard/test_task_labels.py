"""Tasks are shown with their arguments, not with the digests of their default slugs."""

import pytest
from tests.dashboard.made_traces import conversation, put_run
from tests.dashboard.recorded import record
from tests.dashboard.test_tasksets_pages import know_environment, upload
from tests.dashboard.test_train import make_model

from hud.environment.templates.task import default_slug
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.tasksets.versions import Tasksets

POWER = {"env": "arithmetic", "id": "power", "args": {"base": 2, "exponent": 3}}
SLUG = default_slug("power", POWER["args"])
LABEL = "power(base=2, exponent=3)"


def text_of(answer):
    """Return a page without the places where a table's names may break."""
    return answer.text.replace("<wbr>", "")


async def test_a_job_names_its_tasks_by_their_arguments(platform, web):
    job = record(platform, "arithmetic", {SLUG: [0.0, 1.0]}, task=POWER)
    page = text_of(await web.get(f"/jobs/{job}", params={"task": SLUG}))
    assert page.count(f">{LABEL}</") == 2  # In the table, and over its runs.
    assert f">{SLUG}</" not in page
    assert (await web.get(f"/jobs/{job}.json")).json()["tasks"][0]["label"] == LABEL


async def test_comparisons_name_tasks_by_their_arguments(platform, web):
    jobs = [record(platform, name, {SLUG: [0.0, 1.0]}, task=POWER) for name in ("a", "b")]
    page = text_of(await web.get(f"/jobs/compare?job={jobs[0]}&job={jobs[1]}"))
    assert f">{LABEL}</td>" in page


@pytest.mark.slow
async def test_a_run_is_named_by_its_task_s_arguments(platform, web):
    one, other = (put_run(platform.store, conversation(), slug=SLUG, task=POWER) for _ in range(2))
    assert f"<h1>{LABEL}</h1>" in (await web.get(f"/trace/{one}")).text
    assert LABEL in (await web.get(f"/trace/{one}/compare/{other}")).text
    assert LABEL in text_of(await web.get("/search?text=file"))


async def test_a_review_names_a_task_by_its_arguments(platform, web):
    put_run(platform.store, conversation(), slug=SLUG, task=POWER)
    page = text_of(await web.get("/review"))
    assert f">{LABEL}</a>" in page
    assert SLUG not in page


@pytest.mark.slow
@pytest.mark.parametrize("known", [{"slug": "cube"}, {"slug": "cube", "task": None}])
async def test_a_name_of_one_s_own_is_kept(platform, web, known):
    run = put_run(platform.store, conversation(), **{"task": POWER, **known})
    assert "<h1>cube</h1>" in (await web.get(f"/trace/{run}")).text


async def test_a_taskset_names_its_tasks_by_their_arguments(platform, web):
    know_environment(platform.store)
    slug = default_slug("buy", {"n": 3})
    rows = {"name": slug, "env": "shop", "task_id": "buy", "args": {"n": 3}}
    taskset = upload(platform.store, rows)
    assert ">buy(n=3)</a>" in (await web.get(f"/tasksets/{taskset}")).text


@pytest.mark.slow
@pytest.mark.parametrize("place", ["/tasksets/{}/row?slug={}", "/playground?taskset={}"])
async def test_pages_of_a_task_say_its_arguments_in_place_of_a_digest(platform, web, place):
    rows = [
        {"env": {"name": "arithmetic"}, "scenario": "power", "args": POWER["args"], "name": SLUG}
    ]
    made = Tasksets(platform.store, LOCAL_TEAM).upload("a", rows, taskset_id=None, project_id=None)
    make_model(platform)
    page = await web.get(place.format(made["taskset_id"], SLUG))
    assert LABEL in text_of(page)
    assert f"<h1>{SLUG}</h1>" not in page.text


async def test_a_model_without_checkpoints_offers_its_base_once_to_evaluate(platform, web):
    make_model(platform)
    page = (await web.get("/models/m/compare")).text
    assert page.count('name="checkpoint"') == 1
