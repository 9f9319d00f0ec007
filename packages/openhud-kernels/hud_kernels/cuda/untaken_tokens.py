"""Tokens of several decode steps that their requests do not have yet, and which requests must have theirs now.

A step that ends no turn, and that no caller watches, costs nothing for each sequence: stops and lengths are compared as
arrays, and a request gets the tokens of several steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hud.engine.sample.ahead import is_watched
from hud.engine.sample.request import Request
from hud.engine.sample.runner import Sampled


class UntakenTokens:
    """Sampled tokens of at most `most` steps of a batch."""

    def __init__(self, requests: Sequence[Request], most: int) -> None:
        self._requests = requests
        self._ids = np.empty((most, len(requests)), dtype=np.int64)
        self._logprobs = np.empty((most, len(requests)))
        self._steps = 0
        """Steps so far."""
        self._taken = np.zeros(len(requests), dtype=np.int64)
        """Steps of which each request has the tokens."""
        self._room = np.array([request.most - len(request.token_ids) for request in requests])
        """Steps after which each turn is as long as it may be."""
        self._shortest = int(self._room.min())
        watched = np.array([is_watched(request) for request in requests])
        self._watched = watched if watched.any() else None
        self._stops = sorted(frozenset().union(*(request.stop_ids for request in requests)))
        self._goes_on = np.ones(len(requests), dtype=bool)
        """False for requests that have ended."""
        self._left = len(requests)
        """Requests that have not ended."""
        self._due: list[int] = []
        """Rows that the last `add` returned."""

    def add(self, ids: NDArray[np.int64], logprobs: NDArray[np.float64]) -> Sampled:
        """Keep a step's ids and logprobs (B,); return the tokens of requests that may end with it, or are watched."""
        self._ids[self._steps], self._logprobs[self._steps] = ids, logprobs
        self._steps += 1
        due = np.zeros(len(ids), dtype=bool) if self._watched is None else self._watched.copy()
        if self._steps >= self._shortest:
            due |= self._room <= self._steps
        for stop in self._stops:
            due |= ids == stop
        rows = np.flatnonzero(due & self._goes_on)
        self._due = rows.tolist()
        return self._take(rows) if self._due else []

    def note_ends(self) -> None:
        """Discard what is sampled from now on of the requests that have ended with the tokens of the last `add`."""
        for row in self._due:
            if self._requests[row].outcome is not None:
                self._goes_on[row] = False
                self._left -= 1

    @property
    def over(self) -> bool:
        """True once every request has ended."""
        return not self._left

    def rest(self) -> Sampled:
        """Return the tokens that the requests still lack."""
        return self._take(np.flatnonzero(self._goes_on & (self._taken < self._steps)))

    def _take(self, rows: NDArray[np.intp]) -> Sampled:
        if not len(rows):
            return []
        taken = self._taken[rows]
        steps = slice(int(taken.min()), self._steps)
        columns = (part[steps, rows].T.tolist() for part in (self._ids, self._logprobs))
        sampled: Sampled = []
        for row, skipped, ids, logprobs in zip(
            rows.tolist(), (taken - steps.start).tolist(), *columns, strict=True
        ):
            if skipped:
                del ids[:skipped], logprobs[:skipped]
            request = self._requests[row]
            request.uniforms.skip(len(ids))
            # The cache holds all but the last token.
            tokens = request.place.tokens
            tokens.append(request.last_id)
            tokens += ids[:-1]
            sampled.append((request, ids, logprobs))
        self._taken[rows] = self._steps
        return sampled
