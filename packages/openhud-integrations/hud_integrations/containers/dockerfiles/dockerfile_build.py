"""Builds of Dockerfiles without a daemon: files are copied, and each `RUN` is executed in a sandbox without a network.

The result is stored by the content of base, Dockerfile, arguments and context, so that it is built once.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

from hud.environment.workspace.sandbox.build_step import run_build_step
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.root_image import RootImage
from hud.errors import UsageError
from hud_integrations.containers.dockerfiles.build_context import BuildContext
from hud_integrations.containers.dockerfiles.build_stages import (
    BuildStage,
    needed_stages,
    split_stages,
)
from hud_integrations.containers.dockerfiles.instructions import (
    HERE_DOCUMENT,
    instructions,
    listed,
    short,
    without_directives,
)
from hud_integrations.containers.dockerfiles.substitution import UnknownValue, expand, split_words
from hud_integrations.containers.image_store import (
    StoredImage,
    named_image,
    new_image,
    prepare,
    stored_image,
)
from hud_integrations.containers.layers import folder_inside, unpack_layer

BUILD_LIMITS = WorkspaceLimits(memory_mb=4096, processes=1024, disk_mb=8192, seconds=600)
_VERSION = 2
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
    lines, escape = without_directives(text.splitlines())
    parsed = list(instructions(iter(lines), escape))
    for word, rest in parsed:
        if word not in _HONOURED or (word in ("RUN", "COPY", "ADD") and HERE_DOCUMENT.search(rest)):
            raise _unsupported(word, rest)
    before, stages = split_stages(parsed)
    if not stages:
        raise UnsupportedBuild("The Dockerfile has no FROM.")
    settings = _Settings(BuildContext(context), dict(arguments or {}), limits, escape)
    for word, rest in before:
        if word != "ARG":
            raise _unsupported(word, rest)
        _declare(settings.outer, rest, settings.outer, settings)
    finished: dict[str, StoredImage] = {}
    builds = [_Build(settings, stage, finished) for stage in needed_stages(stages)]
    for build in builds:
        build.check_base(stages)
    for build in builds:
        stored = build.image()
        finished.update(dict.fromkeys(build.stage.names, stored))
    return stored.configured()


@dataclass
class _Settings:
    """Shared settings of a build's stages."""

    context: BuildContext
    arguments: dict[str, str]
    limits: WorkspaceLimits
    escape: str
    outer: dict[str, str] = field(default_factory=dict)
    """Arguments before the first `FROM`."""


class _Build:
    """The build of one stage; `finished` are the images of those before it, by their names."""

    def __init__(
        self, settings: _Settings, stage: BuildStage, finished: Mapping[str, StoredImage]
    ) -> None:
        self.stage = stage
        self._settings, self._finished = settings, finished
        self._state = _State()

    def check_base(self, stages: Sequence[BuildStage]) -> None:
        """Raise `UnsupportedBuild` for a base that is neither here nor an earlier stage."""
        base = self._base_name()
        earlier = {name for stage in stages[: self.stage.number] for name in stage.names}
        if base == "scratch" or base.lower() in earlier or named_image(base) is not None:
            return
        raise UnsupportedBuild(
            f"FROM {base}: there is no such image here; hud_integrations.containers.add_image(ARCHIVE, {base!r}) adds one."
        )

    def image(self) -> StoredImage:
        base = self._begin()
        key = self._key(base)
        stored = stored_image(key)
        if stored is None:
            with new_image(key, self._state.config) as root:
                if base is not None:
                    command = ["cp", "--archive", "--reflink=auto", f"{base.root}/.", str(root)]
                    subprocess.run(command, check=True)
                for word, rest in self.stage.instructions:
                    try:
                        self._apply(root, word, rest)
                    except UnknownValue:
                        raise _unsupported(word, rest) from None
                variables = self._state.variables
                self._state.config["Env"] = [f"{name}={value}" for name, value in variables.items()]
            stored = stored_image(key)
        assert stored is not None
        return stored

    def _key(self, base: StoredImage | None) -> str:
        settings = self._settings
        sources = {name: self._finished[name].key for name in sorted(self.stage.references & self._finished.keys())}  # fmt: skip
        parts = (_VERSION, base and base.key, sources, self.stage.instructions, sorted(settings.outer.items()), sorted(settings.arguments.items()), settings.context.digest())  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _base_name(self) -> str:
        """Return the name in `FROM`. Raises `UnsupportedBuild` for one that cannot be evaluated."""
        words = self.stage.words
        try:
            base = expand(words[0], self._settings.outer, self._settings.escape)
        except (UnknownValue, IndexError):
            raise _unsupported("FROM", " ".join(words)) from None
        if base.startswith("--"):
            raise _unsupported("FROM", " ".join(words))
        return base

    def _begin(self) -> StoredImage | None:
        """Return the base, after taking over its settings; None for `scratch`."""
        base = self._base_name()
        if base == "scratch":
            return None
        stored = self._finished.get(base.lower()) or named_image(base)
        assert stored is not None
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
            _declare(state.arguments, rest, state.environment, self._settings)
        elif word == "WORKDIR":
            path = PurePosixPath(state.workdir) / expand(
                rest, state.environment, self._settings.escape
            )
            state.config["WorkingDir"] = normpath(path)
            folder_inside(root, PurePosixPath(state.workdir))
        elif word == "USER":
            state.config["User"] = expand(rest, state.environment, self._settings.escape)
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
        done = run_build_step(step, argv, self._settings.limits)
        if done.exit_code != 0:
            lines = done.stdout.strip().splitlines()
            reason = f"ended with {done.exit_code}" if done.exit_code is not None else f"did not end within {self._settings.limits.seconds:g} s"  # fmt: skip
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
        words = split_words(rest, self._settings.escape)
        mode, context = None, self._settings.context
        while words and words[0].startswith("--"):
            option, _, value = words.pop(0).partition("=")
            if option == "--chmod" and _MODE.fullmatch(value):
                mode = int(value, 8)
            elif option == "--from" and word == "COPY":
                context = self._files_of(value)
            elif option not in ("--chown", "--link"):
                raise UnknownValue
        if words and words[0].startswith("["):
            words = listed(rest[rest.index("[") :])
        *patterns, target = (
            expand(name, state.environment, self._settings.escape) for name in words or [""]
        )
        if not patterns or any("://" in pattern or (word == "ADD" and pattern.endswith(_ARCHIVES)) for pattern in patterns):  # fmt: skip
            raise UnknownValue
        sources = [path for pattern in patterns for path in context.sources(pattern)]
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
        unpack_layer(context.layer(sources, place, mode, into=into), root)

    def _files_of(self, name: str) -> BuildContext:
        """Return the files of a stage or of an image that `COPY --from` names."""
        source = self._finished.get(name.lower()) or named_image(name)
        if source is None:
            raise UnknownValue
        return BuildContext(source.root, of_an_image=True)

    def _set_variables(self, rest: str) -> None:
        """Set variables: of `NAME=VALUE ...`, or of the old form `NAME VALUE`. Values use those before the instruction."""
        environment = self._state.environment
        words = split_words(rest, self._settings.escape)
        if words and "=" not in words[0]:
            words = [f"{words[0]}={rest[len(words[0]) :].strip()}"]
        for word in words:
            name, _, value = word.partition("=")
            self._state.variables[name] = expand(value, environment, self._settings.escape)


def _declare(
    arguments: dict[str, str], rest: str, environment: Mapping[str, str], settings: _Settings
) -> None:
    """Declare arguments: those of the build, else the default, else those before `FROM`."""
    for word in split_words(rest, settings.escape):
        name, equals, value = word.partition("=")
        if name in settings.arguments:
            arguments[name] = settings.arguments[name]
        elif equals:
            arguments[name] = expand(value, {**environment, **arguments}, settings.escape)
        else:
            arguments[name] = settings.outer.get(name, "")


def _unsupported(word: str, rest: str) -> UnsupportedBuild:
    return UnsupportedBuild(
        f"Dockerfile: {short(f'{word} {rest}')} is not supported without docker or podman."
    )
