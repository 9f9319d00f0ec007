"""`hud init`: a small working starter environment."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from hud.errors import ConflictError, UsageError

STARTERS = Path(__file__).with_name("presets")
"""A folder for each preset; NAME, TITLE and FOLDER in its files are placeholders."""
PRESETS = {
    "blank": "a task and its grader, no tools",
    "tools": "a tool written in Python",
    "browser": "a browser for each run",
    "workspace": "a shell and files in a sandbox",
    "mcp": "the tools of an MCP server",
    "subagents": "a lead whose tool is another agent",
}


@click.command(
    name="init",
    epilog="Presets: "
    + "; ".join(f"{preset}, {teaches}" for preset, teaches in PRESETS.items())
    + ".",
)
@click.argument("name", default="my-environment")
@click.option(
    "-p",
    "-t",
    "--preset",
    "--template",
    type=click.Choice(list(PRESETS)),
    default="tools",
    show_default=True,
    help="Contents of the starter.",
)
@click.option(
    "-d",
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    help="Parent folder.",
)
@click.option("-f", "--force", is_flag=True, help="Replace existing files.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, without writing it.")
def command(name: str, preset: str, parent: Path, force: bool, dry_run: bool) -> None:
    """Write a working starter environment into the folder NAME."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise UsageError(
            f"{name!r} cannot name an environment: use letters, digits, - and _, a letter first."
        )
    folder = parent / name
    files = starter(preset, name, folder)
    taken = [str(path) for path in files if path.exists()]
    if taken and not force:
        verb, them = ("exists", "it") if len(taken) == 1 else ("exist", "them")
        raise ConflictError(f"{', '.join(taken)} {verb} already; --force replaces {them}.")
    for path, text in files.items():
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        click.echo(f"{'would write' if dry_run else 'wrote'} {path}")
    if not dry_run:
        tasks, agent = (shlex.quote(str(folder / file)) for file in ("tasks.py", "agent.py"))
        click.echo(f"\nNext:\n  hud eval {tasks} {agent} --all")


def starter(preset: str, name: str, folder: Path) -> dict[Path, str]:
    """Return the files of a preset, by target path."""
    root = STARTERS / preset
    words = {
        "FOLDER": shlex.quote(folder.as_posix()),
        "TITLE": name.replace("-", " "),
        "NAME": name,
    }
    contents = {}
    for source in sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts):
        text = re.sub(
            r"\b(FOLDER|TITLE|NAME)\b", lambda word: words[word[0]], source.read_text("utf-8")
        )
        contents[folder / source.relative_to(root)] = text
    return contents
