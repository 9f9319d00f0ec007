"""Hints of a teacher: texts that it reads before a run's first turn, and the student never does.

Self-distillation from a policy with more context: the teacher's distributions at the student's sampled tokens are those of the
conversation with the hint (context distillation, arXiv 2112.00861).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hud.engine.chat.inserted_message import InsertedMessage
from hud.errors import UsageError
from hud.learning.datums import Datum, Floats, Ids

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat
    from hud_platform.training.served_teacher import ServedTeacher
    from hud_platform.training.teachers import Teacher

Column = TypeVar("Column", Floats, Ids)


def score(
    teacher: Teacher | ServedTeacher,
    datums: Sequence[Datum],
    top: int,
    hints: Sequence[str | None] | None,
    chat: ChatFormat,
) -> list[Datum]:
    """Return the datums with the teacher's columns; `hints` has one text, or None, for each trajectory.

    Raises `UsageError` for a hint beside pictures, and for a template or a turn that has no place for it.
    """
    if hints is None:
        return teacher.score(datums, top)
    messages = {text: InsertedMessage.of(chat, text) for text in set(hints) if text is not None}
    spans, longer = [], []
    for datum in datums:
        hint = hints[datum.traj_idx]
        ids, place = [], 0
        if hint is not None:
            if datum.pictures:
                raise UsageError(
                    "A teacher reads no hints beside pictures; leave teacher_hint out."
                )
            ids = messages[hint].message
            place = messages[hint].place(datum.tokens.tolist(), datum.turns[0][0])
        spans.append((place, len(ids)))
        longer.append(_with(datum, place, ids))
    scored = teacher.score(longer, top)
    return [
        replace(
            datum,
            reference=_without(own.reference, *span),
            reference_tokens=_without(own.reference_tokens, *span),
            reference_top=_without(own.reference_top, *span),
        )
        for datum, own, span in zip(datums, scored, spans, strict=True)
    ]


def _with(datum: Datum, place: int, ids: list[int]) -> Datum:
    """Return a datum with ids before the token at `place`, as part of its prompt."""

    def longer(column: Floats, value: float = 0.0) -> Floats:
        return np.insert(column, [place] * len(ids), value)

    return replace(
        datum,
        tokens=np.insert(datum.tokens, [place] * len(ids), ids),
        mask=longer(datum.mask),
        logprobs=longer(datum.logprobs),
        advantages=longer(datum.advantages),
        weights=longer(datum.weights),
        temperatures=longer(datum.temperatures, 1.0),
    )


def _without(column: Column | None, place: int, count: int) -> Column | None:
    """Return a column without the rows of inserted ids."""
    return None if column is None else np.delete(column, slice(place, place + count), axis=0)
