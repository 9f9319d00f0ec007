"""Real programs, with their defaults, mend a file through the gateway: the model is local and samples the turns of a script."""

import httpx
import pytest

pytest.importorskip("minisweagent", reason="scripts/setup-integration programs")

from tests.integrations.programs.mended_file import played
from tests.integrations.programs.recipes import RECIPES

from hud.learning.datums import datums_of, payload_of
from hud.trace import Trace, new_id, parse_step
from hud.trace.sampled.call_samples import expand_samples


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_a_program_solves_a_task_with_its_defaults(tmp_path, name):
    recipe = RECIPES[name]
    with played(tmp_path, recipe) as (_, model):
        assert model.extended() == (recipe.extends, 3)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECIPES)
def test_the_calls_of_a_programs_run_are_one_datum_id_for_id(tmp_path, name):
    recipe, opening = RECIPES[name], {}

    def opened(url):
        asked = {"trace_id": new_id(), "model": "scripted"}
        opening.update(httpx.post(f"{url}/v1/run-passes", json=asked).raise_for_status().json())
        return opening["key"]

    with played(tmp_path, recipe, opened) as (url, model):
        token = {"token": opening["token"]}
        ended = httpx.post(f"{url}/v1/run-passes/{opening['id']}/end", json=token, timeout=30)
        result = ended.raise_for_status().json()
    assert result["refusal"] is None
    assert model.extended() == (recipe.extends_in_a_run, 3)
    trace = Trace(steps=[parse_step(step) for step in expand_samples(result["steps"])])
    datums = datums_of(payload_of(trace, 1.0))
    trained = sum(datum.actions for datum in datums)
    assert trained == sum(len(output) for _, output in model.prompts)
    assert len(datums) == 4 - recipe.extends_in_a_run
    assert sum(result["metrics"]["excluded"].values()) == len(model.side_calls)
