"""`tinker://RUN/KIND/NAME`: checkpoints as Tinker's clients name them.

RUN is a model of the platform, by name, slug or id. A save is written into its checkpoint's record, so that a checkpoint
may have several names; a name that no save gave is one of the checkpoint tree (`head`, `base`, `step-3`, an id).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hud.errors import ConflictError, NotFoundError, UsageError
from hud_platform.models.checkpoint_tree import CLIENT_NAMES
from hud_platform.models.records import BASE, CheckpointRecord, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.store import tables

SCHEME = "tinker://"
KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_MOST_NAME = 200
_NODES = tables.checkpoints
_NAMES = sa.func.json_each(_NODES.c.metrics[CLIENT_NAMES]).table_valued(
    sa.column("key", sa.String),
    sa.column("value", sa.JSON),
    name="names",
    joins_implicitly=True,
)
"""Rows of the names of each checkpoint."""
_DETAILS = _NAMES.c.value
_NEWEST = (
    _DETAILS["time"].as_string().desc(),
    _NODES.c.created_at.desc(),
    _NODES.c.step.desc(),
    _NODES.c.id.desc(),
    _NAMES.c.key.desc(),
)
"""Order of saves: the newest first, and of one time that of the newest checkpoint."""


@dataclass(frozen=True)
class Save:
    """A checkpoint under one of its names."""

    model: ModelRecord
    node: CheckpointRecord
    key: str
    """`KIND/NAME`."""
    details: dict[str, Any]

    @property
    def path(self) -> str:
        """The path that clients use."""
        return f"{SCHEME}{self.model.name}/{self.key}"

    def shown(self) -> dict[str, Any]:
        """The save as clients list it."""
        size = None
        if self.node.folder is not None:
            size = self.details.get("size") or _size(self.node.folder)
        return {
            "checkpoint_id": self.key,
            "checkpoint_type": KINDS[self.key.partition("/")[0]],
            "time": self.details["time"],
            "tinker_path": self.path,
            "size_bytes": size,
            "public": False,
            "user_metadata": self.details.get("user_metadata"),
            "expires_at": self.details.get("expires_at"),
        }


def parse(path: str) -> tuple[str, str, str]:
    """Return run, kind and name of a path. Raises `UsageError`."""
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in KINDS or not all(parts):
        raise UsageError(
            f"{path!r} is no checkpoint's path; one is tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME."
        )
    return parts[0], parts[1], parts[2]


def resolve(registry: Registry, path: str) -> tuple[ModelRecord, str | None]:
    """Return the model and the checkpoint of a path; None: the model's base weights. Raises `NotFoundError`."""
    run, kind, name = parse(path)
    model = registry.model(run)
    save = _find(registry, model, f"{kind}/{name}")
    if save is not None:
        return model, save.node.id
    return model, registry.tree.find(model, name)


def find(registry: Registry, run: str, key: str) -> Save:
    """Return a save of a run. Raises `NotFoundError`."""
    model = registry.model(run)
    save = _find(registry, model, key)
    if save is None:
        raise NotFoundError(
            f"{model.name!r} has no checkpoint {key!r}, or its time to live has ended."
        )
    return save


def page_of_run(
    registry: Registry, model: ModelRecord, limit: int, offset: int
) -> tuple[list[Save], int]:
    """Return a page of a model's saves, newest first, without expired ones, and their number."""
    return _page(registry, limit, offset, _of(model), _unexpired())


def newest_of(registry: Registry, model: ModelRecord, kind: str) -> Save | None:
    """Return a model's newest save of a kind, without expired ones."""
    of_kind = _NAMES.c.key.startswith(f"{kind}/", autoescape=True)
    return _first(registry, _of(model), of_kind, _unexpired())


def page_of_team(registry: Registry, limit: int, offset: int) -> tuple[list[Save], int]:
    """Return a page of the saves of every model of a team, newest first, without expired ones, and their number."""
    models = tables.models
    of_team = sa.select(models.c.id).where(models.c.team_id == registry.team)
    own = () if registry.team is None else (_NODES.c.model_id.in_(of_team),)
    return _page(registry, limit, offset, *own, _unexpired())


def add(
    registry: Registry,
    model: ModelRecord,
    checkpoint: str,
    key: str,
    *,
    ttl_seconds: int | None = None,
    user_metadata: dict[str, str] | None = None,
    overwrite: bool = False,
) -> Save:
    """Name a checkpoint. Raises `ConflictError` if the name is taken and `overwrite` is False, `UsageError` for a name that
    cannot be one.
    """
    kind, _, name = key.partition("/")
    if kind not in KINDS or not name or "/" in name or len(name) > _MOST_NAME:
        raise UsageError(
            f"{name!r} cannot name a checkpoint: use 1 to {_MOST_NAME} characters without '/'."
        )
    taken = _find(registry, model, key)
    if taken is not None and taken.node.id != checkpoint:
        if not overwrite and kind != "sampler_weights":
            raise ConflictError(
                f"{taken.path} exists; pass overwrite=True, or choose another name."
            )
        _change(registry, taken.node, key, None)
    node = registry.tree.get(checkpoint)
    details = {
        "time": datetime.now(UTC).isoformat(),
        "user_metadata": user_metadata,
        "size": None if node.folder is None else _size(node.folder),
    }
    _change(registry, node, key, {**details, **_until(ttl_seconds)})
    node = registry.tree.get(checkpoint)
    return Save(model, node, key, node.metrics[CLIENT_NAMES][key])


def set_ttl(registry: Registry, save: Save, ttl_seconds: int | None) -> None:
    """Set the time to live of a save; None: it has no end."""
    details = {name: value for name, value in save.details.items() if name != "expires_at"}
    _change(registry, save.node, save.key, {**details, **_until(ttl_seconds)})


def remove(registry: Registry, save: Save) -> None:
    """Remove a save. The checkpoint's files are deleted if no other save, head or fork needs them."""
    _change(registry, save.node, save.key, None)
    drop_files(registry, save.model, save.node.id)


def remove_expired(registry: Registry, model: ModelRecord) -> None:
    """Remove the saves of a model whose time to live has ended."""
    expired, _ = _page(registry, None, 0, _of(model), sa.not_(_unexpired()))
    for save in expired:
        remove(registry, save)


def sampler_checkpoint(checkpoint: str | None) -> str:
    """Return a checkpoint as the engine pins it."""
    return BASE if checkpoint is None else checkpoint


def _find(registry: Registry, model: ModelRecord, key: str) -> Save | None:
    return _first(registry, _of(model), _NAMES.c.key == key, _unexpired())


def _of(model: ModelRecord) -> sa.ColumnElement[bool]:
    return _NODES.c.model_id == model.id


def _unexpired() -> sa.ColumnElement[bool]:
    """Return the condition of saves whose time to live has not ended; times have one form and zone, so that their texts are in order."""
    expires = _DETAILS["expires_at"].as_string()
    return sa.or_(expires.is_(None), expires >= datetime.now(UTC).isoformat())


def _first(registry: Registry, *where: sa.ColumnElement[bool]) -> Save | None:
    saves, _ = _page(registry, 1, 0, *where)
    return saves[0] if saves else None


def _page(
    registry: Registry, limit: int | None, offset: int, *where: sa.ColumnElement[bool]
) -> tuple[list[Save], int]:
    """Return a page of the saves that meet conditions, newest first, and their number. Of a checkpoint's metrics, only its names are read."""
    columns = [column for column in _NODES.c if column.name != "metrics"]
    query = sa.select(*columns, _NAMES.c.key, _DETAILS.label("details"))
    # SQLite has a row without a key for a checkpoint without names.
    query = query.where(_NAMES.c.key.is_not(None), *where).order_by(*_NEWEST)
    rows, total = registry.store.page(query, limit, offset)
    models = {row.model_id: registry.model(row.model_id) for row in rows}
    saves = []
    for row in rows:
        values = dict(row._mapping)
        key, details = values.pop("key"), values.pop("details")
        folder = None if row.folder is None else Path(row.folder)
        node = CheckpointRecord(**{**values, "folder": folder}, metrics={})
        saves.append(Save(models[row.model_id], node, key, details))
    return saves, total


def _size(folder: Path) -> int | None:
    """Return the bytes of a checkpoint's files, which never change; None where they are missing."""
    if not folder.is_dir():
        return None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _until(ttl_seconds: int | None) -> dict[str, str]:
    if ttl_seconds is None:
        return {}
    if ttl_seconds <= 0:
        raise UsageError(
            f"A time to live of {ttl_seconds} s has ended already; use a positive one."
        )
    return {"expires_at": (datetime.now(UTC) + timedelta(seconds=ttl_seconds)).isoformat()}


def _change(
    registry: Registry, node: CheckpointRecord, key: str, details: dict[str, Any] | None
) -> None:
    saves = dict(registry.tree.get(node.id).metrics.get(CLIENT_NAMES) or {})
    saves.pop(key, None)
    if details is not None:
        saves[key] = details
    registry.tree.annotate(node.id, {CLIENT_NAMES: saves})


def drop_files(registry: Registry, model: ModelRecord, checkpoint: str) -> None:
    """Delete the files of a checkpoint, if no save, head or fork needs them."""
    if checkpoint not in registry.needed_checkpoints(model):
        others = {node.id for node in registry.tree.with_files(model)} - {checkpoint}
        registry.tree.prune(model, others)
