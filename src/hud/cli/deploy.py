"""`hud deploy`: an environment's source to the platform, which builds and registers it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import click
import httpx

from hud import settings
from hud.cli.output import console, count, print_json, some
from hud.cli.running import run
from hud.client import connect
from hud.errors import PlatformError, UsageError

POLL_SECONDS = 0.5
UPLOAD_SECONDS = 300.0


@click.command("deploy")
@click.argument("source", type=click.Path(path_type=Path, exists=True), default=Path("."))
@click.option("--name", help="Name of the environment; default: what the source calls it.")
@click.option(
    "-e", "--env", "pairs", multiple=True, metavar="KEY=VALUE", help="Variable it runs with."
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of such variables; default: .env beside the source.",
)
@click.option("--no-env", is_flag=True, help="Send no variables from files.")
@click.option(
    "--build-arg", "build_args", multiple=True, metavar="KEY=VALUE", help="Variable of the build."
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Variable of the build that is kept out of logs and forgotten after it.",
)
@click.option("--no-cache", is_flag=True, help="Build anew, even if nothing changed.")
@click.option("--project", help="Project it belongs to.")
@click.option("--registry-id", hidden=True)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    source: Path,
    name: str | None,
    pairs: tuple[str, ...],
    env_file: Path | None,
    no_env: bool,
    build_args: tuple[str, ...],
    secrets: tuple[str, ...],
    no_cache: bool,
    project: str | None,
    registry_id: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Send the environment in SOURCE (a folder, or its file) to the platform, and build it there."""
    from hud.environment.loading import load_environment

    if settings.load().embedded and not dry_run:
        raise UsageError(
            "There is no server to deploy to: start one with hud up and set HUD_API_URL. On this machine alone, "
            "hud eval plays environments where they are."
        )
    folder = source if source.is_dir() else source.parent
    called = name or load_environment(source).name
    variables = {**_file_variables(folder, env_file, no_env), **_parse(pairs, "--env")}
    request: dict[str, Any] = {
        "source": "direct",
        "name": called,
        "no_cache": no_cache,
        "registry_id": registry_id,
        "project_id": project,
        "environment_variables": variables,
        "build_args": _parse(build_args, "--build-arg"),
        "build_secrets": _parse(secrets, "--secret"),
    }
    return run(_deploy(folder, request, dry_run=dry_run, yes=yes, as_json=as_json))


async def _deploy(
    folder: Path, request: dict[str, Any], *, dry_run: bool, yes: bool, as_json: bool
) -> int:
    from hud.client.archives import pack

    out = console(stderr=as_json)
    with tempfile.TemporaryFile() as archive:
        packed = pack(folder, archive)
        size = archive.tell()
        out.print(
            f"{request['name']}: {count(len(packed.files), 'file')}, {size / 1024:,.0f} KiB packed "
            f"({some(packed.files)})",
            markup=False,
        )
        if request["environment_variables"]:
            out.print(f"with variables {some(sorted(request['environment_variables']))}")
        if dry_run:
            out.print("Nothing was sent (--dry-run).")
            return 0
        if not yes and not as_json and out.is_terminal:
            click.confirm(f"Send it to {settings.load().api_url}?", abort=True, err=True)
        begun = await connect().post("/v2/builds/upload-url")
        archive.seek(0)
        await _upload(begun["upload_url"], archive, size, quiet=as_json)
    kept = {key: value for key, value in request.items() if value not in (None, {}, False)}
    made = await connect().post("/v2/builds/trigger", {**kept, "build_id": begun["build_id"]})
    state = await _follow(made["id"], quiet=as_json)
    if as_json:
        print_json({**state, "registry_id": made["registry_id"]})
    elif state["status"] == "SUCCEEDED":
        out.print(
            f"Version {state['version']} of {state['registry_name']} is ready. Next: "
            f"hud eval TASKSET AGENT --remote",
            markup=False,
        )
    return 0 if state["status"] == "SUCCEEDED" else 1


async def _upload(url: str, archive: IO[bytes], size: int, *, quiet: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        sent = 0
        while chunk := archive.read(1 << 18):
            yield chunk
            sent += len(chunk)
            if not quiet and size > 4 << 20:
                click.echo(f"\rsent {sent * 100 // size}%", nl=sent == size, err=True)

    headers = {"content-type": "application/gzip", "content-length": str(size)}
    async with httpx.AsyncClient(timeout=UPLOAD_SECONDS) as client:
        try:
            answer = await client.put(url, content=chunks(), headers=headers)
        except httpx.TransportError as error:
            raise PlatformError(
                f"The upload broke off: {error or type(error).__name__}."
            ) from error
    if not answer.is_success:
        raise PlatformError(f"The upload was refused: {answer.text[:300]}", answer.status_code)


async def _follow(build_id: str, *, quiet: bool) -> dict[str, Any]:
    """Print a build's log until it ends; returns its state."""
    told = 0
    while True:
        state: dict[str, Any] = await connect().get(f"/v2/builds/{build_id}/status")
        page = await connect().get(f"/v2/builds/{build_id}/lines", params={"after": told})
        for line in page["items"]:
            told = line["number"]
            if not quiet:
                click.echo(f"  {line['text']}")
        if state["status"] in ("SUCCEEDED", "FAILED"):
            return state
        await asyncio.sleep(POLL_SECONDS)


def _parse(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"{option} {pair!r} is not KEY=VALUE.")
        found[name] = value
    return found


def _file_variables(folder: Path, file: Path | None, none: bool) -> dict[str, str]:
    if none:
        return {}
    if file is not None:
        return settings.read_dotenv(file)
    return settings.read_dotenv(folder / ".env")
