"""`hud init`: a working starter environment, small enough to be read in a minute."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hud.errors import ConflictError, UsageError

ENV = '''"""{title}: an environment with a tool, a task template and a grader.

Try it:   hud eval {folder}/tasks.py {folder}/agent.py
"""

from hud import Environment
from hud.graders import numeric_match

env = Environment("{name}")

PRICES = {{"apple": 3, "bread": 4, "cheese": 7}}


@env.tool
def price_of(item: str) -> int:
    """The price of an item."""
    return PRICES[item]


@env.template(id="shopping", description="Find out what a shopping list costs.")
async def shopping(items: list[str]):
    answer = yield f"What do these cost together: {{', '.join(items)}}? Answer with a number."
    yield float(numeric_match(answer, sum(PRICES[item] for item in items)))
'''

TASKS = '''"""Tasks of {title}; `hud eval {folder}/tasks.py AGENT --all` plays them."""

from env import env, shopping  # noqa: F401  (a runtime finds the environment here)

tasks = [
    shopping(items=["apple", "bread"]),
    shopping(items=["cheese"]),
    shopping(items=["apple", "bread", "cheese"]),
]
'''

AGENT = '''"""A scripted agent that solves {title}: the proof that the tasks can be done.

Put a model in its place:   hud eval {folder}/tasks.py SLUG
"""

from hud.trace import ToolCall


async def agent(run):
    """Ask for each price and add them up."""
    items = run.prompt_text.split(": ")[1].split("?")[0].split(", ")
    total = 0
    for number, item in enumerate(items):
        result = await run.call_tool(ToolCall(id=str(number), name="price_of", arguments={{"item": item}}))
        total += int(result.text)
    return str(total)
'''

FILES = {"env.py": ENV, "tasks.py": TASKS, "agent.py": AGENT}


@click.command(name="init")
@click.argument("name", default="my-environment")
@click.option(
    "-d",
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    help="Folder to make it in.",
)
@click.option("-f", "--force", is_flag=True, help="Replace files that are there.")
def command(name: str, parent: Path, force: bool) -> None:
    """Write a working starter environment into the folder NAME."""
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise UsageError(
            f"{name!r} cannot name an environment: use letters, digits, - and _, a letter first."
        )
    folder = parent / name
    taken = [str(folder / file) for file in FILES if (folder / file).exists()]
    if taken and not force:
        raise ConflictError(f"{', '.join(taken)} exists already; --force replaces it.")
    folder.mkdir(parents=True, exist_ok=True)
    words = {"name": name, "folder": folder.as_posix(), "title": name.replace("-", " ")}
    for file, text in FILES.items():
        (folder / file).write_text(text.format(**words), encoding="utf-8")
        click.echo(f"wrote {folder / file}")
    click.echo(f"\nNext:\n  hud eval {folder}/tasks.py {folder}/agent.py --all")
