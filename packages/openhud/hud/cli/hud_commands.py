"""Commands of HUD's own command line: other spellings of ours, and those that have no meaning here, refused by name."""

from __future__ import annotations

import click

from hud.errors import UsageError

SPELLINGS = {
    ("jobs", "list"): "jobs",
    ("jobs", "get"): "jobs",
    ("jobs", "cancel"): "cancel",
    ("trace", "get"): "trace",
}
"""Our command, by the first two words of HUD's."""

ABSENT = {
    "task": "hud eval TASKS AGENT --task-ids SLUG plays one task and grades it, hud eval TASKS human takes your own answer",
    "project": "hud deploy FOLDER --project NAME puts an environment into a project",
    "qa": "hud audit TASKS audits rewards, hud review JOB reviews runs, hud trace ID shows one, hud export JOB writes runs for checks of your own",
    "harbor": "hud import FOLDER makes an environment from Harbor's tasks, hud eval plays them, hud export --to harbor writes them",
    "client": "hud.connect(URL) in Python speaks to a served environment, hud eval TASKS --runtime tcp://HOST:PORT plays it",
}
"""Use in place of each command of HUD's that is not here."""


def respelled(words: list[str]) -> list[str]:
    """Return the words of a command line with HUD's spelling of a command replaced by ours."""
    ours = SPELLINGS.get((words[0], words[1])) if len(words) > 1 else None
    return words if ours is None else [ours, *words[2:]]


def refused(name: str) -> click.Command | None:
    """Return a command that refuses one of HUD's that is not here; None for any other name."""
    if name not in ABSENT:
        return None
    anything = {"ignore_unknown_options": True, "help_option_names": []}

    @click.command(name, hidden=True, context_settings=anything)
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def command(words: tuple[str, ...]) -> None:
        del words
        raise UsageError(f"There is no hud {name} here: {ABSENT[name]}.")

    return command
