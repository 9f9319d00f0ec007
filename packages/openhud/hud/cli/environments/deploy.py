"""`hud deploy`: upload of an environment's source to the platform, which builds and registers it."""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import click
import httpx

from hud import settings
from hud.cli.command_line import pairs
from hud.cli.environments.links import link
from hud.cli.output import console, count, echo, print_json, some
from hud.cli.platform_requests import run
from hud.client import connect
from hud.dotenv import read_dotenv
from hud.environment.sources.variables import file_variables
from hud.errors import PlatformError, UsageError
from hud.trace import is_id

POLL_SECONDS = 0.5
UPLOAD_SECONDS = 300.0


@click.command("deploy")
@click.argument("source", type=click.Path(path_type=Path, exists=True), default=Path("."))
@click.option("--name", help="Name of the environment; default: its name in the source.")
@click.option(
    "-e",
    "--env",
    "variables",
    multiple=True,
    metavar="KEY=VALUE",
    help="Environment variable at run time.",
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of such variables; default: .env in the source's folder, without its HUD_ variables.",
)
@click.option("--no-env", is_flag=True, help="Do not send variables from files.")
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Environment variable of the build.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Secret variable of the build: not logged, deleted afterwards.",
)
@click.option("--no-cache", is_flag=True, help="Build again, even if nothing changed.")
@click.option("--project", help="Project it belongs to, by name or id.")
@click.option("--registry-id", hidden=True)
@click.option("--dry-run", is_flag=True, help="Show what would be sent, without sending it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    source: Path,
    name: str | None,
    variables: tuple[str, ...],
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
    if settings.load().embedded and not dry_run:
        raise UsageError(
            "There is no server to deploy to: start one with hud up and set HUD_API_URL. On this machine alone, "
            "hud eval plays environments where they are."
        )
    folder = source if source.is_dir() else source.parent
    called, entry = _found(source, name)
    sent = {**_file_variables(folder, env_file, no_env), **_parse(variables, "env")}
    request: dict[str, Any] = {
        "source": "direct",
        "name": called,
        "entry": entry,
        "no_cache": no_cache,
        "registry_id": registry_id,
        "project_id": project,
        "environment_variables": sent,
        "build_args": _parse(build_args, "build-arg"),
        "build_secrets": _parse(secrets, "secret"),
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
            if as_json:
                print_json(_plan(request, packed.files, size))
            out.print("Nothing was sent (--dry-run).")
            return 0
        if not yes and not as_json and out.is_terminal:
            click.confirm(f"Send it to {settings.load().api_url}?", abort=True, err=True)
        begun = await connect().post("/v2/builds/upload-url")
        archive.seek(0)
        await _upload(begun["upload_url"], archive, size, quiet=as_json)
    if request["project_id"] is not None:
        request["project_id"] = await _project(request["project_id"])
    sent = {key: value for key, value in request.items() if value not in (None, {}, False)}
    made = await connect().post("/v2/builds/trigger", {**sent, "build_id": begun["build_id"]})
    state = await _follow(made["id"], quiet=as_json)
    await link(folder, registry_id=made["registry_id"])
    if as_json:
        print_json({**state, "registry_id": made["registry_id"]})
    elif state["status"] == "SUCCEEDED":
        out.print(
            f"Version {state['version']} of {state['registry_name']} is ready.\n\nNext:\n"
            f"  hud sync tasks {state['registry_name']}-tasks {shlex.quote(str(folder))}\n"
            f"  hud eval {state['registry_name']}-tasks AGENT --all --remote",
            markup=False,
        )
    else:
        console(stderr=True).print(
            f"The build failed: {state['error_message']}", style="red", markup=False
        )
    return 0 if state["status"] == "SUCCEEDED" else 1


async def _upload(url: str, archive: IO[bytes], size: int, *, quiet: bool) -> None:
    shown = not quiet and size > 4 << 20 and sys.stderr.isatty()

    async def chunks() -> AsyncIterator[bytes]:
        sent = 0
        while chunk := archive.read(1 << 18):
            yield chunk
            sent += len(chunk)
            if shown:
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
    last = 0
    while True:
        state: dict[str, Any] = await connect().get(f"/v2/builds/{build_id}/status")
        page = await connect().get(f"/v2/builds/{build_id}/lines", params={"after": last})
        for line in page["items"]:
            last = line["number"]
            if not quiet:
                echo(f"  {line['text']}")
        if state["status"] in ("SUCCEEDED", "FAILED"):
            return state
        await asyncio.sleep(POLL_SECONDS)


def _found(source: Path, name: str | None) -> tuple[str, str | None]:
    """Return the environment's name, and the file that creates it if it is not a default one.

    The source is analysed without running it: its imports are installed by the build, and may be missing here.
    """
    from hud.environment.sources.declarations import declared_names, entry_of
    from hud.environment.sources.loader import FOLDER_FILES

    file = source if source.is_file() else entry_of(source, name)
    entry = None if source.is_dir() and file.name in FOLDER_FILES else file.name
    if name is not None:
        return name, entry
    names = declared_names(file)
    if len(names) != 1:
        many = f"makes {some(names)}" if names else "does not write its environment's name out"
        raise UsageError(f"{file} {many}; say which: hud deploy {source} --name NAME")
    return names[0], entry


def _plan(request: dict[str, Any], files: list[str], size: int) -> dict[str, Any]:
    """Return the request without values of variables."""
    secret = ("environment_variables", "build_args", "build_secrets")
    shown = {key: sorted(value) if key in secret else value for key, value in request.items()}
    return {**shown, "files": files, "size": size, "dry_run": True}


async def _project(reference: str) -> str:
    """Return the id of a project given by name or id."""
    if is_id(reference):
        return reference
    page = await connect().get("/v2/projects", params={"search": reference, "limit": 1000})
    for project in page["items"]:
        if project["name"] == reference:
            return str(project["id"])
    raise UsageError(f"There is no project {reference!r}.")


def _parse(options: tuple[str, ...], option: str) -> dict[str, str]:
    return dict(pairs(option, "KEY=VALUE", options, empty=True))


def _file_variables(folder: Path, file: Path | None, none: bool) -> dict[str, str]:
    if none:
        return {}
    if file is not None:
        return read_dotenv(file)
    return file_variables(folder)
