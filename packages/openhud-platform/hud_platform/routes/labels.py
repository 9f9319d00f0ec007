"""Routes of labels.

GET /v2/labels   POST /v2/labels   DELETE /v2/labels/{id}   GET /v2/labels/agreement?name=NAME
GET /v2/labels/calibration?name=NAME&grader=GRADER
GET /v2/labels/dataset?name=NAME&to=taskset|sft|preferences|comparisons
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from hud.errors import UsageError
from hud_platform.access.identity import Identity
from hud_platform.access.keys import Keys
from hud_platform.dependencies import (
    READ,
    RUN,
    KeysPart,
    Limit,
    Offset,
    StrictBody,
    Who,
    of_team,
)
from hud_platform.labels.agreement import GRADER, agreement
from hud_platform.labels.calibration import calibration
from hud_platform.labels.comparisons import Comparisons
from hud_platform.labels.datasets import Form, compared_pairs, dataset
from hud_platform.labels.labels import Kind, Labels

router = APIRouter(prefix="/v2/labels", tags=["labels"], dependencies=READ)
LOCAL_RATER = "local"
"""Rater of an embedded platform, which has no keys."""
LabelsPart = Annotated[Labels, of_team(Labels)]


class NewLabel(StrictBody):
    """A label of the caller."""

    kind: Kind = "run"
    subject: str
    """Id, or a unique start of it."""
    name: str
    value: float | None = None
    """None: a tag."""
    note: str | None = None
    rater: str | None = Field(default=None, min_length=1, max_length=100)
    """Another rater, for whom the caller writes; default: the caller."""


def rater_of(keys: Keys, who: Identity, other: str | None = None) -> str:
    """Return the name of a request's rater: its key's. Blocks."""
    key = None if who.key_id is None else keys.by_id(who.key_id)
    own = LOCAL_RATER if key is None else key.name
    if other is None or other == own:
        return own
    return other if key is None else f"{other} via {own}"


def _rater(keys: KeysPart, who: Who) -> str:
    return rater_of(keys, who)


Rater = Annotated[str, Depends(_rater)]


@router.get("")
def list_labels(
    labels: LabelsPart,
    kind: Kind | None = None,
    subject: str | None = None,
    name: str | None = None,
    rater: str | None = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> dict[str, Any]:
    """Labels, newest first. `subject` needs `kind`; default: a run."""
    subject_id = None if subject is None else labels.subject_id(kind or "run", subject)
    items, total = labels.page(kind, subject_id, name, rater, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/agreement")
def get_agreement(labels: LabelsPart, name: str) -> dict[str, Any]:
    """Agreement on a label of runs: between raters, and of each with the runs' rewards."""
    return agreement(labels, name)


@router.get("/calibration")
def get_calibration(
    labels: LabelsPart, name: str, grader: Annotated[str, Query(max_length=200)] = GRADER
) -> dict[str, Any]:
    """Agreement of a grader (`reward`, a subscore, or a rater that is a model) with people's labels, and the suggested threshold."""
    return calibration(labels, name, grader)


@router.get("/dataset")
def get_dataset(
    labels: LabelsPart,
    name: str,
    to: Form,
    least: float | None = None,
    most: float | None = None,
) -> dict[str, Any]:
    """A data set of the runs whose mean value of a label is within bounds: tasks, conversations, or pairs of preferences.

    `comparisons`: the pairs that people compared by the criterion `name`; they have no value.
    """
    if to != "comparisons":
        items = dataset(labels, name, to, least, most)
    elif least is not None or most is not None:
        raise UsageError("least and most bound the values of labels; comparisons have none.")
    else:
        items = compared_pairs(Comparisons(labels.store, labels.team), name)
    return {"items": items, "total": len(items)}


@router.post("", dependencies=RUN)
def put_label(labels: LabelsPart, keys: KeysPart, who: Who, body: NewLabel) -> dict[str, Any]:
    """Label a run, a job or a checkpoint; a label of the same rater and name is replaced."""
    rater = rater_of(keys, who, body.rater)
    return labels.put(body.kind, body.subject, body.name, rater, body.value, body.note)


@router.delete("/{label_id}", dependencies=RUN)
def remove_label(labels: LabelsPart, label_id: str) -> dict[str, bool]:
    """Remove a label."""
    labels.remove(label_id)
    return {"removed": True}
