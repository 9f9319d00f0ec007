"""Reader of Dockerfiles: the working directory, variables and copies of the last stage, without a build.

Instructions are split and variables substituted as BuildKit does it. Values that a base image would set are unknown: an
instruction that needs one is named in `Stage.lost`, as is every instruction that is not carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from posixpath import normpath

from hud_integrations.containers.dockerfiles.instructions import (
    instructions,
    listed,
    short,
    without_directives,
)
from hud_integrations.containers.dockerfiles.substitution import UnknownValue, expand, split_words

_SILENT = ("CMD", "LABEL", "MAINTAINER", "EXPOSE", "SHELL")


@dataclass(frozen=True)
class Copy:
    """A `COPY` or `ADD`: paths in the build context, and their target below the working directory of that line."""

    sources: list[str]
    target: str
    workdir: PurePosixPath
    instruction: str
    """The instruction, shortened, for messages."""


@dataclass
class Stage:
    """The state at the end of a build stage."""

    workdir: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    variables: dict[str, str] = field(default_factory=dict)
    """Values of `ENV`."""
    arguments: dict[str, str] = field(default_factory=dict)
    """Values of `ARG`; empty without a default."""
    copies: list[Copy] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Instructions that are not carried over."""

    def branch(self) -> Stage:
        """Return the first state of a stage that is built on this one."""
        return replace(
            self,
            variables=dict(self.variables),
            arguments=dict(self.arguments),
            copies=list(self.copies),
            lost=list(self.lost),
        )


class _Reader:
    """The stages of one Dockerfile, as its instructions come."""

    def __init__(self, escape: str) -> None:
        self._escape = escape
        self._outer: dict[str, str] = {}
        """Arguments before the first `FROM`: known in `FROM`, and in a stage that declares them."""
        self._stages: dict[str, Stage] = {}
        self.stage: Stage | None = None

    def read(self, word: str, rest: str) -> None:
        """Carry an instruction over into the current stage, or name it as lost."""
        if word == "FROM":
            self.stage = self._begin(rest)
        elif self.stage is not None:
            try:
                self._apply(self.stage, word, rest)
            except UnknownValue:
                self.stage.lost.append(f"Dockerfile: {short(f'{word} {rest}')}")
        elif word == "ARG":
            self._declare(self._outer, rest, self._outer)

    def _begin(self, rest: str) -> Stage:
        words = [word for word in rest.split() if not word.startswith("--")]
        try:
            base = expand(words[0], self._outer, self._escape) if words else ""
        except UnknownValue:
            base = words[0]
        parent = self._stages.get(base.lower())
        if parent is not None:
            stage = parent.branch()
        else:
            stage = Stage(lost=[f"Dockerfile: FROM {rest} (the sandbox has this machine's programs)"])  # fmt: skip
        if len(words) == 3 and words[1].upper() == "AS":
            self._stages[words[2].lower()] = stage
        return stage

    def _apply(self, stage: Stage, word: str, rest: str) -> None:
        """Raises `UnknownValue` for an instruction that is not carried over."""
        variables = {**stage.arguments, **stage.variables}
        if word == "WORKDIR":
            workdir = stage.workdir / expand(rest, variables, self._escape)
            stage.workdir = PurePosixPath(normpath(workdir))
        elif word in ("COPY", "ADD"):
            stage.copies.append(self._copy(stage.workdir, f"{word} {rest}", variables))
        elif word == "ENV":
            self._set_variables(stage, rest, variables)
        elif word == "ARG":
            self._declare(stage.arguments, rest, variables)
        elif word not in _SILENT:
            raise UnknownValue

    def _set_variables(self, stage: Stage, rest: str, variables: Mapping[str, str]) -> None:
        """Set variables: of `NAME=VALUE ...`, or of the old form `NAME VALUE`. Values use those before the instruction."""
        words = split_words(rest, self._escape)
        if words and "=" not in words[0]:
            words = [f"{words[0]}={rest[len(words[0]) :].strip()}"]
        for word in words:
            name, _, value = word.partition("=")
            try:
                stage.variables[name] = expand(value, variables, self._escape)
            except UnknownValue:
                stage.variables.pop(name, None)
                stage.arguments.pop(name, None)
                stage.lost.append(f"Dockerfile: ENV {name}")

    def _declare(self, arguments: dict[str, str], rest: str, variables: Mapping[str, str]) -> None:
        """Declare arguments; one without a default has that of the same name before the first stage."""
        for word in split_words(rest, self._escape):
            name, equals, value = word.partition("=")
            if equals:
                arguments[name] = expand(value, {**variables, **arguments}, self._escape)
            else:
                arguments[name] = self._outer.get(name, "")

    def _copy(self, workdir: PurePosixPath, instruction: str, variables: Mapping[str, str]) -> Copy:
        words = split_words(instruction, self._escape)[1:]
        while words and words[0].startswith("--"):
            if words.pop(0).partition("=")[0] not in ("--chown", "--link"):
                raise UnknownValue
        if words and words[0].startswith("["):
            words = listed(instruction[instruction.index("[") :])
        words = [expand(word, variables, self._escape) for word in words]
        *sources, target = words or [""]
        foreign = ("://" in source or source.startswith("<<") or set(source) & set("*?[") for source in sources)  # fmt: skip
        if not sources or not target or any(foreign):
            raise UnknownValue
        return Copy(sources, target, workdir, short(instruction))


def read_dockerfile(text: str) -> Stage:
    """Return the last stage of a Dockerfile, at its end."""
    lines, escape = without_directives(text.splitlines())
    reader = _Reader(escape)
    for word, rest in instructions(iter(lines), escape):
        reader.read(word, rest)
    return reader.stage or Stage()
