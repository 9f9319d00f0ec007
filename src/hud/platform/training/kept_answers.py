"""Answers of a training session that are kept for repeated requests: a request with an idempotency key acts once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hud.train.contributor import Contributor

MOST_ANSWERS = 64


class KeptAnswers:
    """The newest `MOST_ANSWERS` answers, each with the client that got it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], tuple[Any, Contributor]] = OrderedDict()

    def get(self, *place: str) -> tuple[Any, Contributor] | None:
        """Return the answer of a request and its client; None where it is not kept."""
        return self._kept.get(place)

    def keep(self, answer: Any, client: Contributor, *place: str) -> None:
        """Keep an answer under the words that identify its request; the oldest makes room."""
        self._kept[place] = (answer, client)
        while len(self._kept) > MOST_ANSWERS:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget every answer."""
        self._kept.clear()
