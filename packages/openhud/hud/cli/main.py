"""The `hud` command: dispatch of subcommands, and conversion of errors to a sentence and an exit code.

A command's module is imported only when the command is called, so that `hud --help` is fast. Exit codes: 0 success, 1
failure, 2 invalid input or an unreadable or unwritable store, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from hud import __version__
from hud.cli.evaluation.audit_process import disguised
from hud.cli.hud_commands import refused, respelled
from hud.cli.option_checks import check_options
from hud.cli.plugged_commands import plugged, plugged_names
from hud.cli.refused_arguments import refused_argument
from hud.durable_files import closed_file
from hud.errors import HudError, StoreError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean

COMMANDS = {
    "init": ("environments.init", "Write a working starter environment."),
    "eval": ("evaluation.eval", "Play tasks with an agent and grade what it does."),
    "audit": (
        "evaluation.audit",
        "Audit the rewards of tasks for agents that do none of the work.",
    ),
    "jobs": ("evaluation.jobs", "List evaluations, or show one."),
    "signal": (
        "evaluation.signal",
        "Show the training signal of a job's tasks, and propose a curriculum.",
    ),
    "trace": ("evaluation.trace", "Show the steps of a run."),
    "search": ("evaluation.search", "Find runs by what was said, called and returned."),
    "label": ("evaluation.label", "Label runs, jobs and checkpoints, and list labels."),
    "grade": ("evaluation.grade", "Grade the recorded runs of a job with a changed grader."),
    "review": ("evaluation.review", "Have a model review the runs of a job, as labels."),
    "export": ("evaluation.export", "Write the runs of a job, or tasks, in another format."),
    "import": ("evaluation.importing", "Import runs, or tasks, that are recorded elsewhere."),
    "outcome": ("evaluation.outcome", "Add what became known of a run after its end."),
    "privacy": (
        "platform.privacy",
        "Set what is redacted of imported runs, and how long they stay.",
    ),
    "reward-rule": ("evaluation.reward_rule", "Set how outcomes become rewards."),
    "benchmarks": ("evaluation.benchmarks", "List and install benchmarks that packages ship."),
    "train": ("training.train", "Train a model on its own rollouts."),
    "optimize": ("training.optimize", "Search a system prompt by reflection on graded runs."),
    "improve": (
        "training.improve",
        "Improve a policy in steps of growing cost, within one budget.",
    ),
    "plan": ("training.plan", "Estimate memory, cost and speed of a training run."),
    "models": ("models.group", "Models, their checkpoints and heads."),
    "dev": ("environments.dev", "Serve an environment over MCP while you write it."),
    "serve": ("environments.serve", "Serve an environment over TCP."),
    "tasks": ("environments.tasks", "Draft tasks from recorded runs."),
    "cancel": ("evaluation.cancel", "Cancel rollouts on the platform."),
    "sync": ("environments.sync", "Upload tasks to the platform, or download them."),
    "deploy": ("environments.deploy", "Upload an environment to the platform and build it there."),
    "fleet": (
        "fleet.group",
        "Join a platform's fleet with this machine, and look after its nodes.",
    ),
    "keys": ("platform.keys", "Make, list and revoke keys."),
    "secrets": ("platform.secrets", "Store providers' keys for your team."),
    "login": ("platform.login", "Get a key for this machine, confirmed in the browser."),
    "set": ("platform.set", "Store settings, such as HUD_API_URL=..., for this user."),
    "version": ("version", "Print the version."),
}
"""Module (below `hud.cli`, with the attribute `command`) and help of each command."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells count."""


class LazyGroup(click.Group):
    """A group whose commands are modules, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(dict.fromkeys([*COMMANDS, *plugged_names()]))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        del ctx
        if name not in COMMANDS:
            return plugged(name) or refused(name)
        command: click.Command = importlib.import_module(f"hud.cli.{COMMANDS[name][0]}").command
        check_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = respelled(args)
        # click suggests from `commands`, which is empty where commands are imported when called.
        if not words[0].startswith("-") and self.get_command(ctx, words[0]) is None:
            ctx.fail(
                f"No such command {words[0]!r}{did_you_mean(words[0], self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, words)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: summary for name, (_, summary) in COMMANDS.items()}
        for name in plugged_names():
            if name not in rows and (command := self.get_command(ctx, name)) is not None:
                rows[name] = command.get_short_help_str(limit=80)
        with formatter.section("Commands"):
            formatter.write_dl(list(rows.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: hud init my-environment",
)
@click.version_option(__version__, "-V", "--version", message="openhud %(version)s")
@click.option(
    "--debug", is_flag=True, envvar="HUD_DEBUG", help="Show tracebacks. Also: HUD_DEBUG=1."
)
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Turn agent evaluations into better agents."""
    ctx.obj = {"debug": debug}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    arguments = disguised(list(sys.argv[1:])) if argv is None else list(argv)
    code = run(arguments)
    # A closed output pipe (`hud jobs | head`) is no error, also not at exit.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run a command; returns its exit code. Does not raise."""
    try:
        result: Any = cli.main(args=arguments, prog_name="hud", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as requested:
        return requested.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return report(error, arguments)


def report(error: Exception, arguments: list[str]) -> int:
    """Print an error in one sentence; returns the exit code."""
    debug = wants_traceback(arguments)
    if debug:
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if error.filename else ""
        no_room = (
            f"There is no room on the disk{where}. Free some, then run the same command again."
        )
        error = StoreError(no_room)
    error = refused_argument(error, arguments) or error
    error = closed_file(error) or error
    expected = isinstance(error, HudError)
    kind = type(error).__name__
    sentence = str(error).strip() if expected else f"{kind}: {str(error).strip() or 'no message'}"
    if "--json" in arguments:
        click.echo(json.dumps({"error": kind, "message": sentence}))
    from hud.cli.output import echo

    echo(f"Error: {sentence}", err=True)
    if not expected and not debug:
        again = shlex.join(["hud", "--debug", *arguments])
        click.echo(f"This is not an error we expected. For the traceback: {again}", err=True)
    return 2 if isinstance(error, UsageError | StoreError) else 1


def wants_traceback(arguments: list[str]) -> bool:
    """Return True if tracebacks are requested: `--debug`, `-vv`, or HUD_DEBUG."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" in options or "-vv" in options:
        return True
    debug = next(parameter for parameter in cli.params if parameter.name == "debug")
    return bool(debug.value_from_envvar(click.Context(cli)))


if __name__ == "__main__":
    main()
