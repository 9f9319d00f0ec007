"""A person launches training in a browser, watches it, stops it, and moves the head there and back."""

import re

import pytest
from tests.fleet.deployed_server import deploy

ENV = """
from hud import Environment

env = Environment("letters")

@env.tool
def shout(word: str) -> str:
    '''Say it louder.'''
    return word.upper()

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)
"""
SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 128,
}
SETTINGS = {
    "Steps": "500", "Group size": "4", "Tasks per step": "2", "Turns in a run, at most": "1",
    "Tokens in a turn, at most": "8", "Learning rate": "1e-3", "Steps between held-out scores": "2",
}  # fmt: skip

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture(scope="module")
def world(server, tmp_path_factory):
    """An environment, two tasksets of it, one of an environment that is not here, and a model."""
    folder = tmp_path_factory.mktemp("letters") / "letters"
    folder.mkdir()
    (folder / "env.py").write_text(ENV)
    with server.client() as api:
        deploy(api, folder, "letters")
        for name, env, words in (
            ("colours", "letters", ["red", "green", "blue", "grey"]),
            ("shades", "letters", ["black", "white", "brown", "olive", "ochre", "umber", "azure", "coral", "amber"]),
            ("elsewhere", "nowhere", ["x"]),
        ):  # fmt: skip
            rows = [
                {
                    "name": f"{name}-{word}",
                    "env": {"name": env},
                    "task_id": "say",
                    "args": {"word": word},
                }
                for word in words
            ]
            api.post(
                "/v2/tasks/upload", json={"taskset_name": name, "tasks": rows}
            ).raise_for_status()
        texts = ["say red green blue yellow", "aeiou"] * 3
        api.post(
            "/v2/models/create", json={"name": "policy", "texts": texts, "sizes": SIZES}
        ).raise_for_status()
    return server


def test_training_is_launched_watched_and_stopped_and_heads_are_moved(world, tab):
    tab.set_default_timeout(90_000)
    tab.goto("/train/new")
    tab.get_by_label("Model", exact=True).select_option("policy")
    tab.get_by_text("the head (its base)").wait_for(state="attached")
    assert (
        tab.get_by_label("Tasks", exact=True).locator("option", has_text="elsewhere").is_disabled()
    )
    tab.get_by_text("cannot be played on this server").click()
    tab.get_by_text("No build of its environment 'nowhere' is on this server").wait_for()

    tab.get_by_label("Tasks", exact=True).select_option(label="colours · 4 tasks")
    tab.get_by_label("shades · 9").check()
    for label, value in SETTINGS.items():
        tab.get_by_label(label, exact=True).fill(value)
    tab.get_by_role("button", name="Launch").click()

    tab.wait_for_url(re.compile("/train/[0-9a-f]{32}$"))
    place = tab.url
    tab.locator(".wide canvas").wait_for()
    tab.locator("[data-done]:not([data-done^='0-'])").wait_for(state="attached")
    # A step is done: the curve is asked for again by itself, and has one more point.
    with tab.expect_response("**/curves/reward.json") as first:
        pass
    with tab.expect_response("**/curves/reward.json") as second:
        pass
    assert len(second.value.json()["x"]) >= len(first.value.json()["x"]) >= 1
    tab.locator("#scores tbody tr").nth(1).wait_for()
    tab.get_by_role("button", name="Stop").click()
    tab.get_by_role("button", name="Resume").wait_for()
    assert tab.url == place
    assert "stopped" in tab.locator("#run .badge").inner_text()

    tab.get_by_role("button", name="Resume").click()
    tab.locator("#run .badge.running").wait_for()
    tab.get_by_role("button", name="Stop").click()
    tab.get_by_role("button", name="Resume").wait_for()

    tab.get_by_role("link", name="Checkpoints").click()
    tab.wait_for_url("**/models/policy")
    tree = tab.locator("table.tree")
    head = tree.locator("tr", has_text="head").get_by_role("link").inner_text()
    tab.once("dialog", lambda dialog: dialog.accept())
    tree.get_by_role("link", name="base").click()
    tab.get_by_role("button", name="Roll back to it").click()
    tree.locator("tr", has_text="base").get_by_text("head").wait_for()

    tree.get_by_role("link", name=head).click()
    tab.get_by_role("button", name="Promote to head").wait_for()
    assert tab.locator(".verdict").is_visible()
    tab.once("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Promote to head").click()
    tree.locator("tr", has_text=head).get_by_text("head", exact=True).wait_for()


def test_checkpoints_are_compared_after_an_evaluation(world, tab):
    tab.set_default_timeout(90_000)
    tab.goto("/models/policy/compare?first=head&second=base&taskset=shades")
    tab.locator("details.evaluate").evaluate("one => (one.open = true)")
    tab.get_by_label("Tasks", exact=True).select_option(label="shades")
    for box in tab.locator(".evaluate input[name=checkpoint]").all():
        box.check()
    tab.get_by_role("button", name="Evaluate").click()
    tab.wait_for_url("**/train/launches/*")
    tab.locator("#launch .badge.finished").wait_for()
    assert tab.locator("#launch dd a[href^='/jobs/']").count() >= 1
    tab.goto("/models/policy/compare?first=head&second=base&taskset=shades")
    tab.get_by_text("paired over 9 tasks").wait_for()


def test_a_model_is_talked_to_with_an_environment_at_hand(world, tab):
    tab.goto("/playground?model=policy")
    tab.get_by_label("Tools of").select_option("letters")
    tab.get_by_text("letters: shout").wait_for()
    tab.get_by_label("Tokens in a turn").fill("8")
    tab.get_by_label("Message").fill("say red")
    tab.keyboard.press("Control+Enter")
    tab.locator(".turn h2 span:not(:empty)").wait_for()
    assert tab.locator(".turn").count() == 2
    tab.get_by_role("button", name="New conversation").click()
    assert tab.locator(".turn").count() == 0


def test_a_task_is_loaded_answered_by_the_model_and_graded(world, tab):
    tab.set_default_timeout(60_000)
    tab.goto("/tasksets")
    tab.get_by_role("link", name="colours", exact=True).click()
    tab.get_by_role("link", name="colours-green").click()
    tab.get_by_role("link", name="Try in the playground").click()
    tab.get_by_label("Model").select_option("policy")
    tab.get_by_label("Tokens in a turn").fill("8")
    assert tab.get_by_label("Task", exact=True).input_value() == "colours-green"
    tab.get_by_role("button", name="Load task").click()
    tab.locator(".turn").get_by_text("say green").wait_for()
    tab.get_by_role("button", name="Let it answer").click()
    tab.get_by_role("button", name="Grade this answer").click()
    tab.locator(".turn.grade").get_by_text("reward 0.").wait_for()
    assert tab.get_by_role("button", name="Grade this answer").is_hidden()
