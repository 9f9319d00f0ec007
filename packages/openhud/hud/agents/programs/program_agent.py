"""`ProgramAgent`: a run is played by a program that people ship, as it is.

It starts in the run's workspace, else in a fresh folder, asks the run's model through a pass, and gets the environment's tools
over MCP. The process's exit ends its part; its steps are those that the gateway records.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from hud import settings
from hud.agents.agent import RunView
from hud.agents.programs.own_loop_agent import OwnLoopAgent
from hud.agents.programs.place import SEARCH_PATH, LocalPlace, Place, ProgramEnd, open_place
from hud.agents.programs.program_files import program_files
from hud.agents.programs.program_settings import ProgramConfig
from hud.agents.programs.recipe import Placeholders, ProgramRecipe
from hud.agents.programs.run_model import ModelAccess
from hud.agents.programs.tools_server import NAME, ToolsServer, serve_tools, unless_failed
from hud.errors import EnvironmentFault, RefusedError, UsageError
from hud.trace import Step

VERSION_SECONDS = 30.0
TAIL = 4000
"""Characters of standard error that are recorded."""
_versions: dict[Path, str | None] = {}
"""Versions of programs, by their files: each is asked once."""
_CANNOT_START = (126, 127)
"""Exit codes of a shell for a program that cannot be executed, or is not there."""


class ProgramAgent(OwnLoopAgent):
    """An agent that is a program, by its recipe."""

    config: ProgramConfig

    def __init__(self, config: ProgramConfig) -> None:
        self.recipe: ProgramRecipe = config.program()
        super().__init__(config, self.recipe.name)
        self.file: Path | None = None
        """Path of the installed program."""
        self.version: str | None = None

    async def prepare(self) -> None:
        """Find the program, its version, and its model; raises `UsageError` where one is missing."""
        if self.file is None:
            file = installed(self.recipe)
            own = [path for word in _own_files(self.recipe) for path in program_files(word)]
            settings.add_programs([*program_files(file), *own, *_further(self.config)])
            self.version = await version_of(self.recipe, file)
            self.file = file
        await super().prepare()

    async def __call__(self, run: RunView) -> None:
        if self.file is None:
            await self.prepare()
        await super().__call__(run)

    async def _play(self, run: RunView, access: ModelAccess) -> None:
        recipe = self.recipe
        if run.tools and not recipe.takes_tools:
            raise RefusedError(
                f"{recipe.name} gets no tools of an environment, and this one has {run.tools[0].name!r}: give it tasks of a "
                "workspace, or a harness whose --command names {mcp_config} or {mcp_url}.",
                everywhere=True,
            )
        async with (
            open_place(run) as place,
            serve_tools(run, self.config.tool_timeout_seconds) as tools,
        ):
            values = await self._placeholders(run, place, tools, access)
            await self._write_files(place, values)
            end = await unless_failed(place.run(*self._command(values)), tools)
            await self._take(run, place, end, values)

    async def _placeholders(
        self, run: RunView, place: Place, tools: ToolsServer | None, access: ModelAccess
    ) -> Placeholders:
        reached = await place.reach(access.server)
        folder = f"{place.home}/.hud-run"
        return Placeholders(
            prompt=run.prompt_text,
            prompt_file=f"{folder}/prompt.txt",
            server=reached,
            base_url=f"{reached}/v1",
            key=access.key,
            model=self.config.model,
            workspace=place.work,
            home=place.home,
            mcp_url="" if tools is None else await place.reach(tools.url),
            mcp_config="" if tools is None else f"{folder}/mcp.json",
        )

    async def _write_files(self, place: Place, values: Placeholders) -> None:
        await place.write(values.prompt_file, values.prompt)
        if values.mcp_url:
            server = {"type": "http", "url": values.mcp_url}
            await place.write(values.mcp_config, json.dumps({"mcpServers": {NAME: server}}))
        for path, text in self.recipe.settings_files(values).items():
            await place.write(f"{place.home}/{path}", text)

    def _command(self, values: Placeholders) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the variables."""
        assert self.file is not None
        _, *words = self.recipe.arguments(values)
        words += [values.fill(word) for word in self.config.arguments]
        folders = dict.fromkeys(
            str(path.parent) for path in (self.file, *program_files(self.file)) if path.is_file()
        )
        variables = {
            "PATH": os.pathsep.join(folders),
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            **self.recipe.variables,
            **self.config.variables,
        }
        files = {str(path): str(path) for path in _own_files(self.recipe)}
        absolute = [
            str(Path(word).absolute()) if str(Path(word).absolute()) in files else word
            for word in words
        ]
        return [str(self.file), *absolute], {
            name: values.fill(value) for name, value in variables.items()
        }

    async def _take(
        self, run: RunView, place: Place, end: ProgramEnd, values: Placeholders
    ) -> None:
        """Record the program's end, and take its answer."""
        recipe = self.recipe
        stderr = end.stderr[-TAIL:].replace(values.key, "***")
        run.trace.extra["program"] = {
            "name": recipe.name,
            "version": self.version,
            "place": place.kind,
            "exit_code": end.exit_code,
            "stderr": stderr,
        }
        if end.exit_code in _CANNOT_START and not end.stdout:
            raise EnvironmentFault(_cannot_start(recipe, place, str(self.file), stderr))
        if end.exit_code != 0:
            last = stderr.strip().splitlines()[-1:] or ["it printed no reason"]
            run.record(
                Step(
                    source="system",
                    error=f"{recipe.name} ended with exit code {end.exit_code}: {last[0]}",
                )
            )
        file = None
        if recipe.answer_file is not None:
            file = await place.read(f"{place.home}/{recipe.answer_file}")
        run.trace.content = recipe.answer(end.stdout, file)


def installed(recipe: ProgramRecipe) -> Path:
    """Return the path of an installed program; raises `UsageError` with the command that installs it."""
    path = shutil.which(recipe.command[0])
    if path is None:
        cure = f"install it: {recipe.install}" if recipe.install else "install it, or give its path"
        raise UsageError(f"There is no program {recipe.command[0]!r} on this machine; {cure}.")
    return Path(path).absolute()


def _further(config: ProgramConfig) -> list[Path]:
    """Return the further mounts; raises `UsageError` for one that does not exist."""
    paths = [Path(path).expanduser().absolute() for path in config.mounts]
    for path in paths:
        if not path.exists():
            raise UsageError(f"mounts names {str(path)!r}, which does not exist.")
    return paths


def _own_files(recipe: ProgramRecipe) -> list[Path]:
    """Return the files of this machine that words of the command name, such as a script."""
    paths = [Path(word) for word in recipe.command[1:] if "{" not in word]
    return [path.absolute() for path in paths if path.is_file()]


async def version_of(recipe: ProgramRecipe, file: Path) -> str | None:
    """Return the first line with a number that a program prints as its version; None: it prints none within the time limit."""
    if not recipe.version:
        return None
    if file not in _versions:
        _versions[file] = await _printed_version(recipe, file)
    return _versions[file]


async def _printed_version(recipe: ProgramRecipe, file: Path) -> str | None:
    with tempfile.TemporaryDirectory(prefix="hud-program-") as folder:
        place = LocalPlace(Path(folder))
        variables = {"PATH": f"{file.parent}:{SEARCH_PATH}", **recipe.variables}
        variables = {name: value for name, value in variables.items() if "{" not in value}
        try:
            async with asyncio.timeout(VERSION_SECONDS):
                end = await place.run([str(file), *recipe.version], variables)
        except TimeoutError:
            return None
    lines = [line.strip() for line in (end.stdout + end.stderr).splitlines()]
    return next((line for line in lines if re.search(r"\d+\.\d+", line)), None)


def _cannot_start(recipe: ProgramRecipe, place: Place, file: str, stderr: str) -> str:
    reason = stderr.strip().splitlines()[-1:] or ["it printed no reason"]
    if place.kind != "workspace":
        return f"{recipe.name} could not be started: {reason[0]}."
    return (
        f"{recipe.name} could not be started in the workspace ({reason[0]}): {file} must be readable by every user of the "
        "machine of the workspace, and so must the folders above it and its interpreter."
    )
