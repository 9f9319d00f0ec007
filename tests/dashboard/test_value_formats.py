"""Values as pages write them: spans of time in their unit, nothing in Python's notation."""

import re

import pytest
from tests.dashboard.conftest import sign_in
from tests.dashboard.test_train import make_model

from hud.train.config import TrainConfig
from hud_dashboard.pages.train_form import changed
from hud_dashboard.value_formats import duration, sentence, visible, written
from hud_platform.training.runs import TrainingRuns


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"),
        (0.0003, "0.3 ms"),
        (0.004, "4 ms"),
        (0.42, "420 ms"),
        (0.9996, "1.0 s"),
        (4.2, "4.2 s"),
        (12.4, "12 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_a_span_of_time_is_in_the_unit_that_it_is(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("'quoted'", "'quoted'"),
        (True, "true"),
        (None, "null"),
        (0.1 + 0.2, "0.3"),
        (1e-4, "0.0001"),
        ([1, "a", None], '[1,"a",null]'),
        (("a",), '["a"]'),
        ({"a": {"b": False}}, '{"a":{"b":false}}'),
    ],
)
def test_a_value_is_written_as_json_never_as_python_would(value, shown):
    assert written(value) == shown
    if value is not None:
        assert visible(value) == str(visible(shown))


def test_settings_of_a_training_run_read_as_they_are_given():
    config = TrainConfig(
        model="m",
        loss="ppo",
        loss_config={"clip_low_threshold": 0.8},
        divide_by_std=True,
        joined=["m"],
    )
    shown = {name: value for name, value, _ in changed(config.model_dump(mode="json"))}
    assert shown["loss_config"] == "clip_low_threshold=0.8"
    assert shown["divide_by_std"] == "on"
    assert shown["zero_advantages"] == "off"
    assert shown["joined"] == "m"
    assert shown["lr"] == "0.0001"
    assert shown["system_prompt"] == "–"


@pytest.mark.slow
async def test_a_training_run_s_page_shows_no_python_literal(platform, web):
    model = make_model(platform)
    config = TrainConfig(model="m", loss_config={"token_mean": 1.0}, divide_by_std=True)
    run = TrainingRuns(platform.store, model.team_id).start(
        model.id, config.model_dump(mode="json"), {}
    )
    page = re.sub(r"<[^>]*>", " ", (await web.get(f"/train/{run['id']}")).text)
    assert "token_mean=1" in page
    for literal in (" True ", " False ", " None ", "{'", "['"):
        assert literal not in page, literal


async def test_playground_and_human_baseline_are_places_of_the_navigation(keyed, web):
    page = (await web.get("/jobs")).text
    navigation = page.partition("<nav")[2].partition("</nav>")[0]
    assert 'href="/playground"' in navigation
    assert 'href="/baseline"' in navigation
    # Who may not run anything is not offered what needs it.
    async with sign_in(keyed, "read") as client:
        navigation = (await client.get("/jobs")).text.partition("<nav")[2].partition("</nav>")[0]
        assert "/playground" not in navigation
        assert 'href="/baseline"' in navigation


def test_a_message_shows_its_commands_as_code_and_escapes_the_rest():
    message = "There is no job '<b>'; `hud jobs` lists them."
    assert str(sentence(message)) == (
        "There is no job &#39;&lt;b&gt;&#39;; <code>hud jobs</code> lists them."
    )
