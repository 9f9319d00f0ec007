"""Open sequences: token sequences of a run that a later prompt may continue.

The calls of a run form a forest: subagents interleave, conversations are shortened, calls are repeated. A prompt continues the
longest open sequence that it begins with. That one is then closed: a second prompt with the same beginning is another branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hud.trace.sampled.pictures import Picture, pictures_within, same_pictures

T = TypeVar("T")


@dataclass(frozen=True)
class OpenSequence(Generic[T]):
    """Prompt and output of a turn that no prompt has continued."""

    tokens: Sequence[int]
    pictures: Sequence[Picture]
    value: T
    """The caller's record of it."""

    def begins(self, prompt: Sequence[int], pictures: Sequence[Picture]) -> bool:
        """Return whether a prompt begins with these tokens and pictures."""
        length = len(self.tokens)
        # The last token first: comparing whole beginnings would copy every prompt for each open sequence.
        if not length or length > len(prompt) or prompt[length - 1] != self.tokens[-1]:
            return False
        within = pictures_within(pictures, length)
        return prompt[:length] == self.tokens and same_pictures(within, self.pictures)


class OpenSequences(Generic[T]):
    """The open sequences of one run."""

    def __init__(self, most: int | None = None) -> None:
        """`most`: maximum number kept, to bound memory; the least recently continued is forgotten. None: no limit."""
        self._most = most
        self._open: list[OpenSequence[T]] = []

    def take(
        self, prompt: Sequence[int], pictures: Sequence[Picture] = ()
    ) -> OpenSequence[T] | None:
        """Close and return the longest open sequence that a prompt begins with, the newest of equal ones; None without any."""
        best: int | None = None
        for place, sequence in enumerate(self._open):
            if best is not None and len(sequence.tokens) < len(self._open[best].tokens):
                continue
            if sequence.begins(prompt, pictures):
                best = place
        return None if best is None else self._open.pop(best)

    def add(self, tokens: Sequence[int], pictures: Sequence[Picture], value: T) -> None:
        """Open the sequence of a turn."""
        self._open.append(OpenSequence(tokens, pictures, value))
        if self._most is not None and len(self._open) > self._most:
            del self._open[0]
