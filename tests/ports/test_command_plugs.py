"""Commands that join the command line by entry points of `hud.commands`."""

import pytest

from hud.cli.main import run

CHESS = '''
import click


@click.command("chess")
@click.option("--move", default="e4")
def plug(move):
    """Play chess."""
    click.echo(f"moved {move}")
'''


@pytest.mark.parametrize(
    ("name", "words"), [("chess", ["chess"]), ("models.chess", ["models", "chess"])]
)
def test_a_stranger_s_command_is_called_and_listed(stranger, capsys, name, words):
    stranger("hud.commands", name, CHESS)
    assert run([*words, "--move", "d4"]) == 0
    assert run([*words[:-1], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "moved d4" in shown
    assert "Play chess." in shown


def test_a_stranger_s_command_refuses_option_checks_as_all_do(stranger, capsys):
    stranger("hud.commands", "fleet.chess", CHESS)
    assert run(["fleet", "chess", "--move", "d4", "--move", "e4"]) == 2
    assert "--move is given 2 times" in capsys.readouterr().err


def test_a_command_below_a_group_is_none_of_the_top(stranger, capsys):
    stranger("hud.commands", "models.chess", CHESS)
    assert run(["chess"]) == 2
    assert "No such command 'chess'" in capsys.readouterr().err


def test_a_command_of_the_core_cannot_be_replaced(stranger, capsys):
    stranger("hud.commands", "models.list", CHESS)
    assert run(["models", "list", "--json"]) == 0
    assert "moved" not in capsys.readouterr().out


def test_a_plug_that_is_no_command_is_refused_in_one_sentence(stranger, capsys):
    stranger("hud.commands", "chess", "plug = 3")
    assert run(["chess"]) == 2
    assert "'chess' of strange-plug" in capsys.readouterr().err


def test_other_commands_work_beside_one_that_cannot_be_imported(stranger, capsys):
    stranger("hud.commands", "models.chess", "raise NotImplementedError('no board')")
    assert run(["models", "list", "--json"]) == 0
    assert run(["models", "chess"]) == 2
    assert "no board" in capsys.readouterr().err
