"""`hud models vllm`: the vLLM servers that sample a model."""

from __future__ import annotations

import click

from hud.cli.models.options import as_json_option
from hud.cli.output import console, print_json, training_usage
from hud.cli.platform_requests import ask, model_path


@click.command(name="vllm")
@click.argument("slug")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--key-env", help="Environment variable of the platform with the servers' key.")
@click.option(
    "--weights",
    type=click.Choice(["folder", "receiver", "nccl"]),
    help="Transfer of weights.  [default: folder]",
)
@click.option(
    "--receiver-port",
    type=click.IntRange(1, 65535),
    help="Port of `hud fleet receive` on the servers' hosts.  [default: 8400]",
)
@click.option("--off", is_flag=True, help="Sample on this platform again.")
@as_json_option
def vllm(
    slug: str,
    urls: tuple[str, ...],
    key_env: str | None,
    weights: str | None,
    receiver_port: int | None,
    off: bool,
    as_json: bool,
) -> None:
    """Sample a model on vLLM servers while it is trained here, or show its servers.

    The servers are contacted at the model's next use. Weights are transferred as files, so the servers need access to this
    platform's HUD_HOME under the same path. With `--weights receiver` they are sent to `hud fleet receive` on the servers' hosts;
    with `--weights nccl`, by vLLM's weight transfer.
    """
    if off and urls:
        raise click.UsageError("--off goes without servers.")
    options = {"weights": weights, "receiver_port": receiver_port}
    settings = {name: value for name, value in options.items() if value is not None}
    for name in settings if key_env is None else ("key_env", *settings):
        if not urls:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with servers.")
    servers = {"kind": "vllm", "urls": urls, "key_env": key_env, "settings": settings}
    place = model_path(slug)
    request = (
        ("put", f"{place}/servers", {"servers": servers if urls else None})
        if urls or off
        else ("get", place)
    )
    model = ask(*request)
    recorded = model["config"]["servers"]
    if as_json:
        print_json({"model": model["model_name"], "servers": recorded})
        return
    name = model["model_name"]
    if recorded is None:
        console().print(f"{name} is sampled on this platform.", markup=False)
        return
    console().print(f"{name} is sampled on {', '.join(recorded['urls'])}.", markup=False)
    if urls:
        console().print(training_usage(name), markup=False)
