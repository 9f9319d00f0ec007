"""Builds of Dockerfiles without a daemon: files are copied, and each `RUN` is executed in a sandbox without a network.

The result is stored by the content of base, Dockerfile, arguments and context, so that it is built once.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from hud.environment.workspace.sandbox.build_step import run_build_step
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.root_image import RootImage
from hud.errors import UsageError
from hud_integrations.containers.build_context import BuildContext
from hud_integrations.containers.image_store import (
    StoredImage,
    named_image,
    new_image,
    prepare,
    stored_image,
)
from hud_integrations.containers.instructions import (
    HERE_DOCUMENT,
    instructions,
    listed,
    short,
    without_directives,
)
from hud_integrations.containers.layers import folder_inside, unpack_layer
from hud_integrations.containers.substitution import UnknownValue, expand, split_words

BUILD_LIMITS = WorkspaceLimits(memory_mb=4096, processes=1024, disk_mb=8192, seconds=600)
_VERSION = 1
_MODE = re.compile(r"[0-7]{3,4}")
_HONOURED = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "ARG",
    "WORKDIR",
    "USER",
    "SHELL",
    "ENTRYPOINT",
    "CMD",
    "LABEL",
    "EXPOSE",
    "MAINTAINER",
]
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz", ".tar.zst")


class UnsupportedBuild(UsageError):
    """A Dockerfile needs docker or podman, or a base that is not here."""


@dataclass
class _State:
    """Settings of the image and of the build, as the instructions set them."""

    config: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])

    @property
    def workdir(self) -> str:
        return str(self.config.get("WorkingDir") or "/")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that instructions and `RUN` see."""
        return {**self.arguments, **self.variables}


def build_without_daemon(
    context: Path,
    text: str | None = None,
    *,
    arguments: Mapping[str, str] | None = None,
    limits: WorkspaceLimits = BUILD_LIMITS,
) -> RootImage:
    """Return the image of a Dockerfile: `text`, else the one in the folder `context`; built if it was not before.

    The base is `scratch` or an image that `add_image` named. Raises `UnsupportedBuild` for instructions that need a daemon,
    and `UsageError` for a `RUN` that fails.
    """
    if text is None:
        text = (context / "Dockerfile").read_text(encoding="utf-8")
    return _Build(BuildContext(context), text, dict(arguments or {}), limits).image().configured()


class _Build:
    """One build."""

    def __init__(
        self, context: BuildContext, text: str, arguments: dict[str, str], limits: WorkspaceLimits
    ) -> None:
        lines, self._escape = without_directives(text.splitlines())
        self._instructions = list(instructions(iter(lines), self._escape))
        self._context, self._arguments, self._limits = context, arguments, limits
        self._outer: dict[str, str] = {}
        self._state = _State()
        for word, rest in self._instructions:
            if word not in _HONOURED or (word in ("RUN", "COPY", "ADD") and HERE_DOCUMENT.search(rest)):  # fmt: skip
                raise _unsupported(word, rest)
        self._base = self._begin()

    def image(self) -> StoredImage:
        key = self._key()
        stored = stored_image(key)
        if stored is None:
            with new_image(key, self._state.config) as root:
                if self._base is not None:
                    command = ["cp", "--archive", "--reflink=auto", f"{self._base.root}/.", str(root)]  # fmt: skip
                    subprocess.run(command, check=True)
                for word, rest in self._instructions:
                    try:
                        self._apply(root, word, rest)
                    except UnknownValue:
                        raise _unsupported(word, rest) from None
                variables = self._state.variables
                self._state.config["Env"] = [f"{name}={value}" for name, value in variables.items()]
            stored = stored_image(key)
        assert stored is not None
        return stored

    def _key(self) -> str:
        parts = (_VERSION, self._base and self._base.key, self._instructions, sorted(self._arguments.items()), self._context.digest())  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _begin(self) -> StoredImage | None:
        """Return the base, after taking over its settings and the arguments before it; None for `scratch`."""
        stages = [rest for word, rest in self._instructions if word == "FROM"]
        if len(stages) != 1:
            raise UnsupportedBuild(
                f"The Dockerfile has {len(stages)} stages (FROM); a build without a daemon has one."
            )
        while (first := self._instructions.pop(0))[0] != "FROM":
            if first[0] != "ARG":
                raise _unsupported(*first)
            self._declare(self._outer, first[1], self._outer)
        try:
            base = expand(first[1].split()[0], self._outer, self._escape)
        except (UnknownValue, IndexError):
            raise _unsupported(*first) from None
        if base.startswith("--"):
            raise _unsupported(*first)
        if base == "scratch":
            return None
        stored = named_image(base)
        if stored is None:
            raise UnsupportedBuild(
                f"FROM {base}: there is no such image here; hud_integrations.containers.add_image(ARCHIVE, {base!r}) adds one."
            )
        state = self._state
        state.config |= stored.config
        state.variables |= dict(pair.split("=", 1) for pair in stored.config.get("Env") or ())
        return stored

    def _apply(self, root: Path, word: str, rest: str) -> None:
        """Raises `UnknownValue` for an instruction that cannot be evaluated."""
        state = self._state
        if word == "RUN":
            self._run(root, rest)
        elif word in ("COPY", "ADD"):
            self._copy(root, word, rest)
        elif word == "ENV":
            self._set_variables(rest)
        elif word == "ARG":
            self._declare(state.arguments, rest, state.environment)
        elif word == "WORKDIR":
            path = PurePosixPath(state.workdir) / expand(rest, state.environment, self._escape)
            state.config["WorkingDir"] = normpath(path)
            folder_inside(root, PurePosixPath(state.workdir))
        elif word == "USER":
            state.config["User"] = expand(rest, state.environment, self._escape)
        elif word == "SHELL":
            state.shell = listed(rest)
        elif word in ("ENTRYPOINT", "CMD"):
            state.config[word.capitalize()] = self._command(rest)

    def _run(self, root: Path, rest: str) -> None:
        if rest.startswith("--"):
            raise UnknownValue
        state = self._state
        argv = self._command(rest)
        prepare(root)
        image = StoredImage("", root, {**state.config, "Env": []}).configured()
        variables = {**image.variables, **state.environment}
        step = RootImage(root, state.workdir, variables, image.user)
        done = run_build_step(step, argv, self._limits)
        if done.exit_code != 0:
            lines = done.stdout.strip().splitlines()
            reason = f"ended with {done.exit_code}" if done.exit_code is not None else f"did not end within {self._limits.seconds:g} s"  # fmt: skip
            raise UsageError(
                f"RUN {short(rest)} {reason}{': ' + lines[-1] if lines else ''} (builds without a daemon have no network and "
                "one user)."
            )

    def _command(self, rest: str) -> list[str]:
        """Return a command: a JSON list, else one of the shell, which may begin with a bracket, too."""
        if rest.startswith("["):
            with suppress(UnknownValue):
                return listed(rest)
        return [*self._state.shell, rest]

    def _copy(self, root: Path, word: str, rest: str) -> None:
        state = self._state
        words = split_words(rest, self._escape)
        mode = None
        while words and words[0].startswith("--"):
            option, _, value = words.pop(0).partition("=")
            if option == "--chmod" and _MODE.fullmatch(value):
                mode = int(value, 8)
            elif option not in ("--chown", "--link"):
                raise UnknownValue
        if words and words[0].startswith("["):
            words = listed(rest[rest.index("[") :])
        *patterns, target = (
            expand(name, state.environment, self._escape) for name in words or [""]
        )
        if not patterns or any("://" in pattern or (word == "ADD" and pattern.endswith(_ARCHIVES)) for pattern in patterns):  # fmt: skip
            raise UnknownValue
        sources = [path for pattern in patterns for path in self._context.sources(pattern)]
        place = PurePosixPath(normpath(PurePosixPath(state.workdir) / target))
        parent = folder_inside(root, place.parent)
        into = (
            len(sources) > 1
            or target.rpartition("/")[2] in ("", ".", "..")
            or (parent / place.name).is_symlink()
            or (parent / place.name).is_dir()
        )
        if into or sources[0].is_dir():
            folder_inside(root, place)
        unpack_layer(self._context.layer(sources, place, mode, into=into), root)

    def _set_variables(self, rest: str) -> None:
        """Set variables: of `NAME=VALUE ...`, or of the old form `NAME VALUE`. Values use those before the instruction."""
        environment = self._state.environment
        words = split_words(rest, self._escape)
        if words and "=" not in words[0]:
            words = [f"{words[0]}={rest[len(words[0]) :].strip()}"]
        for word in words:
            name, _, value = word.partition("=")
            self._state.variables[name] = expand(value, environment, self._escape)

    def _declare(
        self, arguments: dict[str, str], rest: str, environment: Mapping[str, str]
    ) -> None:
        """Declare arguments: those of the build, else the default, else those before `FROM`."""
        for word in split_words(rest, self._escape):
            name, equals, value = word.partition("=")
            if name in self._arguments:
                arguments[name] = self._arguments[name]
            elif equals:
                arguments[name] = expand(value, {**environment, **arguments}, self._escape)
            else:
                arguments[name] = self._outer.get(name, "")


def _unsupported(word: str, rest: str) -> UnsupportedBuild:
    return UnsupportedBuild(
        f"Dockerfile: {short(f'{word} {rest}')} is not supported without docker or podman."
    )
