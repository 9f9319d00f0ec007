"""`hud benchmarks`: list the benchmarks, and install the packages that ship them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hud.benchmarks import Benchmark

NAME = "NAME"
"""Placeholder of the part after the slash in benchmarks' names."""


@click.group(name="benchmarks")
def command() -> None:
    """Benchmarks: tasks that packages ship, for `hud eval --benchmark NAME`."""


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one entry for each benchmark.")
def list_command(as_json: bool) -> None:
    """List the benchmarks: tasks in each split, licence, and the package that ships them."""
    print_benchmarks(as_json=as_json)


@command.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def install(names: tuple[str, ...]) -> None:
    """Install the packages of benchmarks by NAME, such as bfcl-multi-turn or reasoning-gym, or of all.

    Versions are pinned, and nothing else that is installed changes its version for them.
    """
    from hud.benchmarks import installation

    for package in installation.packages(names):
        if package.installed != package.version:
            installation.install(package)
        click.echo(f"{package.name} {package.version} is installed ({package.licence}).")


def print_benchmarks(*, as_json: bool) -> None:
    """Print every benchmark; names that differ only after the slash share a row."""
    from hud.benchmarks import SPLITS, benchmarks
    from hud.cli.output import console, lines_of, print_json, wrapped

    installed = benchmarks()
    if as_json:
        print_json(
            [
                {
                    "name": listed.name,
                    "summary": listed.summary,
                    "tasks": listed.sizes,
                    "package": listed.package.name,
                    "version": listed.package.version,
                    "licence": listed.package.licence,
                    "oracle": listed.make_oracle is not None,
                    "needs": listed.needs,
                    "installed": listed.package.installed == listed.package.version,
                }
                for listed in installed
            ]
        )
        return
    families: dict[str, list[Benchmark]] = {}
    for listed in installed:
        family, slash, _ = listed.name.partition("/")
        families.setdefault(f"{family}/{NAME}" if slash else family, []).append(listed)
    rows = []
    for shown, members in families.items():
        package = members[0].package
        rows.append(
            [
                shown,
                *(f"{sum(member.sizes[split] for member in members):,}" for split in SPLITS),
                f"{package.name} {package.version}",
                package.licence,
                "yes" if package.installed == package.version else "no",
            ]
        )
    names = ["benchmark", *SPLITS, "package", "licence", "ready"]
    left = ["benchmark", "package", "licence", "ready"]
    out = console()
    for line in lines_of(names, rows, left=left, shrinks="benchmark"):
        out.print(line, markup=False)
    for listed in installed:
        if listed.needs:
            out.print(f"\n{listed.name} needs {listed.needs}", markup=False)
    for shown, members in families.items():
        if shown.endswith(f"/{NAME}"):
            out.print(f"\n{shown}, with {NAME} one of {len(members)}:", markup=False)
            for line in wrapped(
                " ".join(sorted(member.name.partition("/")[2] for member in members)), 2
            ):
                out.print(line, markup=False)
    out.print("\nInstall: hud benchmarks install NAME · Play: hud eval --benchmark NAME AGENT")
