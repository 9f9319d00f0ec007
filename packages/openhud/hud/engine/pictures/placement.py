"""Positions of pictures in token sequences, by their picture tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hud.errors import UsageError
from hud.trace.sampled.pictures import Picture


def check_placed(
    ids: Sequence[int], pictures: Sequence[Picture], picture_tokens: frozenset[int]
) -> None:
    """Raise `UsageError` unless every picture token of a sequence belongs to a picture, and every picture has its own."""
    if pictures and not picture_tokens:
        raise UsageError("This model reads text only; the prompt holds a picture.")
    if not picture_tokens:
        return
    places = [place for place, token in enumerate(ids) if token in picture_tokens]
    at = 0
    for picture in pictures:
        if picture.tokens < 1 or places[at : at + 1] != [picture.start]:
            raise UsageError(
                f"The picture at token {picture.start} of the prompt is not where its tokens are."
            )
        at += picture.tokens
    if at != len(places):
        raise UsageError(
            f"The prompt has {len(places)} tokens that stand for pictures, and its pictures have {at}."
        )


def starts_of(ids: Sequence[int], counts: Sequence[int], token: int) -> list[int] | None:
    """Return the position of each picture's first token, of pictures with so many tokens; None: they are not those of `ids`."""
    places = [place for place, item in enumerate(ids) if item == token]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    if bounds[-1] != len(places) or 0 in counts:
        return None
    return [places[first] for first, _ in pairwise(bounds)]
