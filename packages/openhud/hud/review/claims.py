"""Claims of a reviewer about a run, each with the steps that it rests on, and clusters of causes over runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hud.errors import HudError
from hud.graders.quoted_json import object_with

Kind = Literal["cause", "reward_hack", "infrastructure"]
LONGEST_CLAIM = 1_000
"""Characters of a claim that are kept."""
LONGEST_NAME = 48
"""Characters of a cluster's name."""

_Text = Annotated[str, Field(min_length=1)]


class UnreadableReply(HudError):
    """A model's reply without the one JSON object that was requested."""


@dataclass(frozen=True)
class Claim:
    """A statement about a run."""

    kind: Kind
    text: str
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """Causes that are one fault."""

    name: str
    """Lower-case words with hyphens."""
    text: str
    causes: tuple[int, ...]
    """Places in the list of causes, from 0."""


class _Reply(BaseModel):
    model_config = ConfigDict(strict=True)


class _Claim(_Reply):
    kind: Kind
    text: _Text
    steps: list[int]


class _Claims(_Reply):
    claims: list[_Claim] = Field(max_length=100)


class _Cluster(_Reply):
    name: _Text
    text: _Text
    causes: list[int]


class _Clusters(_Reply):
    clusters: list[_Cluster] = Field(max_length=500)


def claims_in(reply: str, steps: Collection[int]) -> tuple[list[Claim], int]:
    """Return the claims of a reply, and how many were dropped: those that rest on no step, or on one that was not shown.

    Raises `UnreadableReply`.
    """
    try:
        claims = _Claims.model_validate(object_with("claims", reply)).claims
    except ValidationError as error:
        raise UnreadableReply(_problem(error)) from None
    grounded = [
        Claim(claim.kind, claim.text[:LONGEST_CLAIM], tuple(sorted(set(claim.steps))))
        for claim in claims
        if claim.steps and all(step in steps for step in claim.steps)
    ]
    return grounded, len(claims) - len(grounded)


def clusters_in(reply: str, count: int) -> list[Cluster]:
    """Return the clusters of `count` causes, which the reply numbers from 1; a number belongs to its first cluster.

    Raises `UnreadableReply`.
    """
    try:
        clusters = _Clusters.model_validate(object_with("clusters", reply)).clusters
    except ValidationError as error:
        raise UnreadableReply(_problem(error)) from None
    by_name: dict[str, tuple[str, list[int]]] = {}
    taken: set[int] = set()
    for cluster in clusters:
        members = [cause - 1 for cause in cluster.causes if 1 <= cause <= count]
        members = [cause for cause in dict.fromkeys(members) if cause not in taken]
        taken.update(members)
        if members:
            _, causes = by_name.setdefault(name_of(cluster.name), (cluster.text, []))
            causes += members
    return [
        Cluster(name, text[:LONGEST_CLAIM], tuple(causes))
        for name, (text, causes) in by_name.items()
    ]


def name_of(text: str) -> str:
    """Return the name of a cluster in lower-case words with hyphens."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:LONGEST_NAME].rstrip("-") or "unnamed"


def described(claims: Sequence[Claim]) -> str:
    """Return claims as a note: each with its steps."""
    return "; ".join(f"{claim.text} ({steps_of(claim)})" for claim in claims)


def steps_of(claim: Claim) -> str:
    """Return a claim's steps, as `step 3` or `steps 3, 4`."""
    numbers = ", ".join(map(str, claim.steps))
    return f"step{'s' * (len(claim.steps) > 1)} {numbers}"


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else "it has no single object of that form"
