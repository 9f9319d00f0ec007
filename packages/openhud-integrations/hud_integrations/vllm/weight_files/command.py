"""`hud fleet receive`: receive weights on a node whose servers see no folder of the trainer."""

from __future__ import annotations

import os
from pathlib import Path

import click

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command("receive")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=8400, show_default=True)
@click.option(
    "--served",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that the servers loaded at their start: its files need not be sent.",
)
@click.option("--key-env", help="Environment variable with the key that senders need.")
def command(folder: Path, host: str, port: int, served: Path | None, key_env: str | None) -> None:
    """Receive weights into FOLDER, for the servers of this machine, until SIGTERM or Ctrl-C.

    The trainer sends them: `hud models vllm MODEL URL... --weights receiver`. Where servers and trainer share a disk,
    nothing needs to be received.
    """
    import uvicorn

    from hud.processes.listening import listen
    from hud_integrations.vllm.weight_files.receiver import WeightVersions, application

    key = None if key_env is None else os.environ.get(key_env)
    if key_env is not None and not key:
        raise click.UsageError(f"{key_env} is not set.")
    if key is None and host not in LOOPBACK:
        raise click.UsageError(
            f"On {host}, others reach the receiver: name its key with --key-env."
        )
    app = application(WeightVersions(folder, served), key)
    listening = listen(host, port)
    click.echo(f"Receiving weights at http://{host}:{port} into {folder}.")
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
