"""`hud optimize` and `hud models prompt`: what they print, their exit codes, and what they refuse."""

import json

import pytest

from hud.cli.main import run

TASKS = """
from hud import Environment

env = Environment("letters")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


tasks = [say(word=word) for word in %r]
"""
WORDS = ["red", "green", "blue", "pink", "gold", "teal", "navy", "lime", "plum", "rose"]
REFLECTOR = """
def policy(messages, tools, trace):
    return "```\\nsay it\\n```"
"""


@pytest.fixture
def tasks(hud_models, tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS % WORDS)
    (tmp_path / "held_out.py").write_text(TASKS % ["cyan", "mint", "rust", "sand", "wine", "jade"])
    (tmp_path / "reflector.py").write_text(REFLECTOR)
    sizes = ("--hidden", "32", "--layers", "1")
    hud_models("create", "m", "--preset", "tiny", "--tasks", "tasks.py", *sizes)
    return "tasks.py"


def optimize(*arguments, capsys):
    capsys.readouterr()
    short = ("--max-tokens", "8", "--max-turns", "1", "--eval-group", "2")
    code = run(["optimize", "tasks.py", "--model", "m", *short, *arguments])
    return code, capsys.readouterr()


@pytest.mark.slow
def test_a_search_prints_its_iterations_and_what_it_spent(tasks, capsys):
    held_out = ("--held-out", "held_out.py", "--reflector", "reflector.py:policy")
    arguments = (*held_out, "--budget", "120rollouts", "--patience", "2")
    code, printed = optimize(*arguments, capsys=capsys)
    assert code in (0, 1)
    lines = printed.out.splitlines()
    assert lines[0].startswith("searching a system prompt of m: run ")
    assert any(line.startswith("iteration 1: minibatch 0.") for line in lines)
    assert "of 120 rollouts" in printed.out
    code, printed = optimize(*arguments, "--json", capsys=capsys)
    report = json.loads(printed.out)
    assert report["spent"]["rollouts"] <= 120
    assert report["promoted"] is (code == 0)


def test_what_cannot_be_searched_is_one_sentence(tasks, capsys):
    for arguments, sentence in (
        (("--budget", "much"), "'much' is no budget."),
        (("--budget", "5usd"), "needs the price of this machine: --hour-price"),
        (("--held-out", "tasks.py"), "10 of 10 held-out tasks are training tasks, too"),
        (("--budget", "9rollouts"), "A budget of 9 rollouts holds no iteration"),
        (("--reflector", "no-such-model"), "no-such-model"),
    ):
        code, printed = optimize(*arguments, capsys=capsys)
        assert (code, sentence in printed.err) == (2, True), printed.err


def test_prompts_are_added_to_the_tree_and_printed(tasks, hud_models, tmp_path):
    assert "has no system prompt of its own" in hud_models("prompt", "m").out
    (tmp_path / "prompt.txt").write_text("Be brief.")
    node = json.loads(hud_models("prompt", "m", "--add", "prompt.txt", "--json").out)
    assert (node["is_active"], node["system_prompt"]) == (False, "Be brief.")
    assert "no system prompt" in hud_models("prompt", "m").out
    hud_models("head", "m", "--set", node["id"])
    assert hud_models("prompt", "m").out == "Be brief.\n"
    assert "another system prompt" in hud_models("checkpoints", "m").out
    (tmp_path / "empty.txt").write_text("")
    bare = json.loads(hud_models("prompt", "m", "--add", "empty.txt", "--json").out)
    assert bare["system_prompt"] is None
    assert hud_models("prompt", "m", node["name"]).out == "Be brief.\n"
