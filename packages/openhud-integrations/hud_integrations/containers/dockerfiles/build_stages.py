"""`BuildStage`: the part of a Dockerfile from one `FROM` to the next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_SOURCE = re.compile(r"--from=(\S+)")


@dataclass
class BuildStage:
    """A stage: the words of its `FROM`, and its other instructions."""

    number: int
    words: list[str]
    """The base, or `--platform=...` before it, and `AS NAME`."""
    instructions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """Names by which later stages refer to it, in lower case: its number, and its own."""
        own = {self.words[2].lower()} if len(self.words) == 3 and self.words[1].upper() == "AS" else set()  # fmt: skip
        return {str(self.number), *own}

    @property
    def references(self) -> set[str]:
        """Stages and images that it starts from or copies of, as they are written, in lower case."""
        copied = [name for word, rest in self.instructions if word in ("COPY", "ADD") for name in _SOURCE.findall(rest)]  # fmt: skip
        return {name.lower() for name in [*self.words[:1], *copied]}


def split_stages(
    instructions: Sequence[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[BuildStage]]:
    """Return the instructions before the first `FROM`, and the stages."""
    before: list[tuple[str, str]] = []
    stages: list[BuildStage] = []
    for word, rest in instructions:
        if word == "FROM":
            stages.append(BuildStage(len(stages), rest.split()))
        elif stages:
            stages[-1].instructions.append((word, rest))
        else:
            before.append((word, rest))
    return before, stages


def needed_stages(stages: Sequence[BuildStage]) -> list[BuildStage]:
    """Return the stages on which the last one rests, and itself, in order."""
    needed: list[BuildStage] = []
    wanted = {str(len(stages) - 1)}
    for stage in reversed(stages):
        if stage.names & wanted:
            needed.append(stage)
            wanted |= stage.references
    return needed[::-1]
