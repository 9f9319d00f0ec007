"""`torchrun --nproc-per-node 2 -m hud.cli.distributed train MODEL TASKS ...`: `hud train` with the trainer on several ranks.

The first rank runs the command, with rollouts and sampler; the others hold shards of the trainer and follow its
instructions.
"""

from __future__ import annotations

import signal
import sys

import click

from hud.cli.main import run
from hud.errors import HudError, UsageError
from hud.settings import load


def main(arguments: list[str]) -> int:
    """Run this rank of a training; returns the exit code."""
    try:
        _check(arguments)
        # Imports torch.
        from hud.engine.learn import process_group
        from hud.engine.learn.distributed import follow, leading

        ranks = process_group.join()
    except HudError as error:
        click.echo(f"Error: {error}", err=True)
        return 2 if isinstance(error, UsageError) else 1
    code = 0
    if ranks.index == 0:
        with leading(ranks):
            code = run(arguments)
    else:
        # After Ctrl-C the first rank finishes its step, which needs the other ranks.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        follow(ranks)
    process_group.leave()
    return code


def _check(arguments: list[str]) -> None:
    if arguments[:1] != ["train"]:
        raise UsageError(
            "Several ranks train: torchrun --nproc-per-node 2 -m hud.cli.distributed train MODEL TASKS"
        )
    url = load().api_url
    if url is not None:
        raise UsageError(
            f"HUD_API_URL says that models are trained at {url}, not here; unset it to train with several ranks."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
