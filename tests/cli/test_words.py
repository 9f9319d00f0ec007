"""One word for one thing: tasks are TASKS in every command, and settings have the names that they have in Python."""

import inspect

import click
import pytest

from hud.cli.main import cli
from hud.eval import Taskset
from hud.train.config import TrainConfig

TAKES_TASKS = ("eval", "train", "sync tasks", "models create", "models compare")


def command(path):
    found = cli
    for name in path.split():
        found = found.get_command(click.Context(found), name)
    return found


@pytest.mark.parametrize("path", TAKES_TASKS)
def test_tasks_are_called_tasks(path):
    context = click.Context(command(path), info_name=path)
    usage = context.get_usage() + context.get_help()
    assert "TASKS" in usage
    assert "SOURCE" not in usage
    options = [name for one in command(path).params for name in one.opts]
    assert "--taskset" not in options
    assert "--source" not in options


def test_settings_of_rollouts_have_the_names_of_python():
    """`hud eval`, `hud train`, its TOML file and `Taskset.run` agree."""
    given = set(inspect.signature(Taskset.run).parameters) & set(TrainConfig.model_fields)
    given.remove("agent")  # An argument of `hud eval`.
    assert given == {"group", "judge", "max_concurrent", "rollout_timeout", "runtime"}
    for path in ("eval", "train"):
        options = {name for one in command(path).params for name in one.opts}
        assert {f"--{name.replace('_', '-')}" for name in given} <= options


def test_every_setting_of_training_is_an_option_of_the_same_name():
    options = {name for one in command("train").params for name in one.opts}
    structured = {"model", "tasks", "subagents", "loss_config", "agent_settings"}
    for name in TrainConfig.model_fields.keys() - structured:
        assert f"--{name.replace('_', '-')}" in options, name
