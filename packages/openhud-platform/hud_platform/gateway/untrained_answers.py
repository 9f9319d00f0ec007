"""Answers of a run that are recorded and not trained on: side calls, and answers that others superseded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from hud.trace import Exclusion
from hud_platform.gateway.turn_index import Key


@dataclass(frozen=True)
class AnsweredCall:
    """An answered call of a run."""

    number: int
    choices: int
    conversation: str
    """Digest of the conversation that it answers."""
    tools: bool
    """True if the request offered tools."""
    answers: frozenset[Key]
    """Earlier answers that stand in the request (`ReadConversation.answers`)."""
    started_at: datetime
    ended_at: datetime

    @property
    def keys(self) -> list[Key]:
        """Its answers."""
        return [(self.number, choice) for choice in range(self.choices)]


def untrained_answers(calls: Sequence[AnsweredCall]) -> Mapping[Key, Exclusion]:
    """Return the answers of a run that are not trained on, with the reason.

    A side call offers no tools, holds no earlier answer, and stands in no later request; where no call of the run offers tools, the
    program has none, and no call is a side call. Of several answers to one conversation those that stand in later requests count. If
    none does, the last one counts, and those that were asked for before its predecessors had ended: a program that asks several
    times at once takes all answers, one that asks again has lost the first.
    """
    used = frozenset(key for call in calls for key in call.answers)
    excluded: dict[Key, Exclusion] = {}
    if any(call.tools for call in calls):
        aside = [call for call in calls if not call.tools and not call.answers]
        excluded = {
            key: "side_call" for call in aside for key in call.keys if not used & {*call.keys}
        }
    ordered = sorted(calls, key=lambda call: (call.conversation, call.number))
    for _, same in groupby(ordered, key=lambda call: call.conversation):
        repeated = list(same)
        last = repeated[-1]
        continued = any(used & {*call.keys} for call in repeated)
        for call in repeated:
            lost = not continued and call.ended_at <= last.started_at
            for key in call.keys:
                if lost or (continued and key not in used):
                    excluded.setdefault(key, "superseded")
    return excluded
