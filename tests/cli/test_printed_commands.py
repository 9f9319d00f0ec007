"""Commands that the product prints can be copied: each names a command and options that exist, and runs."""

from __future__ import annotations

import ast
import re
import shlex

import click
import pytest
from click.testing import CliRunner
from tests.cli.test_guides import hud, warm  # noqa: F401
from tests.docs.blocks import ROOT, pages
from tests.sources import files

from hud.cli.main import COMMANDS, cli

COMMAND = re.compile(rf"\bhud ({'|'.join(COMMANDS)})\b([^\n]*)")
SHOWN = re.compile(
    rf"(?:^|Next: |Then: |Go on: |Follow it: |Stop it: )\s*(hud (?:{'|'.join(COMMANDS)})\b.*)"
)
STANDS = {
    "AGENT": "agent.py",
    "TASKS": "tasks.py",
    "SOURCE": "tasks.py",
    "SLUG": "m",
}
"""What the reader puts in the place of a word in capitals."""


def written() -> list[tuple[str, str]]:
    """Return every text of the sources and recipes that speaks of a command, and what stands in backticks in the documentation."""
    found = []
    for file in files():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "X" for part in node.values
                ]
                found.append((f"{file.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append((f"{file.relative_to(ROOT)}:{node.lineno}", node.value))
    for template in files("html"):
        for number, line in enumerate(template.read_text().splitlines(), 1):
            shown = re.sub(r"<[^>]*>|\{%.*?%\}|[{}\"]", ";", line)
            found.append((f"{template.relative_to(ROOT)}:{number}", shown))
    found += [
        (str(recipe.relative_to(ROOT)), recipe.read_text().replace("\\\n", " "))
        for recipe in (ROOT / "examples" / "fleet").rglob("*.*")
    ]
    for page in pages():
        for number, line in enumerate(page.read_text().splitlines(), 1):
            place = f"{page.relative_to(ROOT)}:{number}"
            found += [(place, code) for code in re.findall(r"`(hud [^`]*)`", line)]
    return [(place, text) for place, text in found if COMMAND.search(text)]


def problems(text: str) -> list[str]:
    """Return what is wrong with the commands in a text: subcommands and options that do not exist."""
    wrong = []
    for name, rest in COMMAND.findall(text):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        # Prose goes on after a command; another command begins again.
        rest = re.split(r"[;·`(]| hud |[.,] |, then|  +|\.$", rest)[0]
        words = rest.replace("'", " ").replace('"', " ").split()
        while isinstance(command, click.Group) and words:
            inner = command.get_command(click.Context(command), words[0])
            if inner is None:
                break
            command = inner
            words.pop(0)
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        known |= {"--help", "--debug"}
        for word in words:
            option = re.match(r"--?[a-z][a-z-]*$", word.partition("=")[0])
            if option and option[0] not in known:
                wrong.append(f"hud {name} has no {option[0]}")
    return wrong


@pytest.mark.slow
def test_every_command_that_is_written_anywhere_has_the_options_that_it_is_given():
    texts = written()
    assert len(texts) > 150
    wrong = [(place, *found) for place, text in texts if (found := problems(text))]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Next: hud eval TASKS AGENT --all", []),
        ("hud eval --everything", ["hud eval has no --everything"]),
        ("hud models head m --sett x", ["hud models has no --sett"]),
    ],
)
def test_options_that_do_not_exist_are_found(text, wrong):
    assert [found.replace("models head", "models") for found in problems(text)] == wrong


USAGE = r"Usage: (hud train \w+ TASKS)"


def printed(said: str) -> list[str]:
    """Return the commands of an output, as a person would copy them: whole lines, or what follows `Next:`."""
    found = []
    for line in said.splitlines():
        for part in line.split(" · "):
            shown = SHOWN.search(part.strip())
            if shown:
                found.append(shown[1])
    return found


def filled(command: str) -> str:
    return " ".join(STANDS.get(word, word) for word in command.split(" "))


@pytest.fixture
def folder(hud, tmp_path):  # noqa: F811
    hud("hud init e")
    for name in ("env.py", "tasks.py", "agent.py"):
        (tmp_path / name).write_text((tmp_path / "e" / name).read_text())
    return tmp_path


def run_all(hud, said, at_least):  # noqa: F811
    commands = [filled(command) for command in printed(said)]
    assert len(commands) >= at_least, said
    for command in commands:
        assert not re.search(r"\b[A-Z]{3,}\b", command.partition("  #")[0]), command
        hud(command)
    return commands


@pytest.mark.slow
def test_what_an_evaluation_prints_runs(hud, folder):  # noqa: F811
    run_all(hud, hud("hud eval tasks.py agent.py -v"), 4)
    again = run_all(hud, hud("hud eval tasks.py agent.py --task-ids 0,1 --rollout-timeout 50"), 4)
    assert any("--rollout-timeout 50.0 --task-ids 0,1 --group 4" in one for one in again), again
    run_all(hud, hud("hud init 'f' --dir 'two words'"), 1)
    run_all(hud, hud("hud eval 'two words/f/tasks.py' 'two words/f/agent.py' --all"), 4)


@pytest.mark.slow
def test_what_an_evaluation_with_failures_prints_goes_on_with_the_same_tasks_and_settings(
    hud,  # noqa: F811
    folder,
):
    broken = (folder / "env.py").read_text()
    (folder / "env.py").write_text(broken.replace("yield float(", "yield 1 / 0 + float("))
    said = hud("hud eval tasks.py agent.py --group 2 --runtime local", code=1)
    (folder / "env.py").write_text(broken)
    (resume,) = [command for command in printed(said) if "--resume" in command]
    assert "--runtime local --task-ids" in resume
    assert "--group 2 --resume" in resume
    again = hud(resume)
    assert re.search(r"mean reward +1\.000", again)
    assert again.startswith("tasks · agent: 2 runs"), "what was missing, and no other task"


@pytest.mark.slow
def test_a_key_on_the_command_line_is_not_printed_again():
    from hud.cli.command_line import command_line

    @click.command()
    @click.argument("source")
    @click.option("-c", "--config", multiple=True)
    @click.option("--on/--off", default=True)
    @click.pass_context
    def eval_(context, source, config, on):
        click.echo(command_line(context))

    arguments = ["a b.py", "-c", "api_key=sk-1", "-c", "claude.api_key=sk-2", "-c", "x=1", "--off"]
    said = CliRunner().invoke(eval_, arguments, prog_name="hud eval").output
    assert said.strip() == (
        "hud eval 'a b.py' --config api_key=YOUR_KEY --config claude.api_key=YOUR_KEY --config x=1 --off"
    )
    assert shlex.split(said)[2] == "a b.py"


@pytest.mark.slow
def test_what_models_and_training_print_runs(hud, folder):  # noqa: F811
    said = hud("hud models")
    (make,) = re.findall(r"Make one: (hud models create .*)", said)
    small = " --hidden 32 --layers 1 --vocab-size 300 --max-context 256"
    made = hud(filled(make) + small)
    small = " --steps 1 --group 2 --tasks-per-step 2 --max-tokens 8 --max-turns 1"
    *warm_up, train = printed(made)
    assert train == "hud train m tasks.py"
    for command in (
        warm_up
    ):  # A script in the place of a model that costs money, and one pass over what it did.
        hud(re.sub(r"--epochs \d+", "--epochs 1", command.replace(" claude ", " agent.py ")))
    for command in printed(hud(train + small)):
        hud(command)
    (train,) = re.findall(USAGE, hud("hud models head m --set base"))
    hud(filled(train) + small)
    (train,) = re.findall(USAGE, hud("hud models fork m --name n"))
    hud(filled(train) + small)
    (export,) = [
        line
        for line in printed(hud("hud jobs $(hud jobs --json | jq -r '.[0].id')"))
        if "export" in line
    ]
    hud(export)
