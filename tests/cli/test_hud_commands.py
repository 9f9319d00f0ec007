"""Commands as HUD's command line spells them: the same ones work, the others are refused with what to use here."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from hud.cli.hud_commands import ABSENT, SPELLINGS
from hud.cli.main import COMMANDS, cli, run
from hud.cli.platform_requests import run as ask
from hud.client import connect


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))


@pytest.mark.parametrize("name", sorted(ABSENT))
@pytest.mark.parametrize("rest", [[], ["list"], ["run", "a", "--wait"], ["--help"]])
def test_a_command_without_a_meaning_here_is_refused_by_name(capsys, name, rest):
    assert run([name, *rest]) == 2
    assert f"There is no hud {name} here: hud" in capsys.readouterr().err
    assert name not in COMMANDS


@pytest.mark.parametrize(
    ("name", "command"), [("evla", "eval"), ("trian", "train"), ("job", "jobs")]
)
def test_a_misspelt_command_is_suggested(capsys, name, command):
    assert run([name]) == 2
    error = capsys.readouterr().err
    assert f"No such command '{name}'; did you mean" in error
    assert f"'{command}'" in error


@pytest.mark.parametrize("words", sorted(SPELLINGS))
def test_another_spelling_has_the_help_of_our_command(words):
    told = CliRunner().invoke(cli, [*words, "--help"]).output
    assert told == CliRunner().invoke(cli, [SPELLINGS[words], "--help"]).output
    assert "Usage:" in told


@pytest.mark.slow
def test_a_rollout_is_cancelled_by_the_start_of_its_id(capsys):
    async def begin():
        await connect().post(f"/v2/trace/{'ab' * 16}/enter", {})

    ask(begin())
    assert run(["jobs", "list"]) == 0
    assert run(["trace", "get", "abababababab"]) == 0
    assert run(["cancel", "--trace-id", "abababababab"]) == 0
    assert "Nothing to cancel" in capsys.readouterr().out
    assert run(["cancel", "--trace-id", "cdcdcdcdcdcd"]) == 2
