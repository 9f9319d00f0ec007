"""Options that click takes and that have no meaning are refused: one given twice, no finite number, a port beyond the last."""

import pytest

from hud.cli.command_line import pairs
from hud.cli.main import run
from hud.errors import UsageError


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "compare", "m", "a", "b", "--tasks", "one.py", "--tasks", "two.py"],
        ["models", "promote", "m", "a", "--taskset", "one.py", "--tasks", "two.py"],
        ["eval", "tasks.py", "--group", "2", "--group-size=4"],
        ["eval", "tasks.py", "--task-ids=a", "--task-ids", "b"],
        ["train", "m", "tasks.py", "--steps", "3", "--steps", "4"],
        ["jobs", "--limit", "1", "--limit", "2"],
    ],
)
def test_a_repeated_option_is_refused_and_named(arguments, capsys):
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert "is given 2 times and takes one value; give it once" in error


def test_a_repeatable_option_may_not_give_one_name_twice():
    with pytest.raises(UsageError, match="--config gives temperature twice"):
        pairs("config", "KEY=VALUE", ["temperature=0", "model=a", "temperature=1"])


def test_repeatable_options_and_flags_may_be_given_again(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    missing = str(tmp_path / "none.py")
    arguments = ["eval", missing, "nothing", "-c", "a=1", "-c", "b=2", "--all", "--all", "-v", "-v"]
    run(arguments)
    assert "times" not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "Infinity"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "tasks.py", "m", "--temperature"],
        ["eval", "tasks.py", "m", "--rollout-timeout"],
        ["train", "m", "tasks.py", "--min-gain"],
        ["models", "promote", "m", "a", "--tasks", "tasks.py", "--max-regression"],
        ["outcome", "run", "--name", "resolved", "--value"],
    ],
)
def test_a_number_that_is_not_finite_is_refused(arguments, value, capsys):
    assert run([*arguments, value]) == 2
    assert f"{arguments[-1]} takes a finite number" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "99999999"])
@pytest.mark.parametrize("command", [["up"], ["view", "--no-browser"], ["serve", "env.py"]])
def test_a_port_is_checked_before_anything_starts(command, port, capsys):
    assert run([*command, "--port", port]) == 2
    assert "is not in the range 0<=x<=65535" in capsys.readouterr().err
