"""Checkpoint tree of a model: parents of checkpoints, and the head, which is the node that serves.

Optimizer steps append under the head and move it; the head may be set to any node, and training from there
makes a branch. Reads rows and folders; loads no weights.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from hud.engine.config import ADAPTER_CONFIG
from hud.errors import ConflictError, NotFoundError, StoreError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean
from hud.trace import new_id, now, plain
from hud_platform.models.checkpoint_files import (
    SAMPLER,
    STATE,
    Manifest,
    delete_state,
    link_or_copy,
    read_manifest,
    remove_unfinished,
    verify_checkpoint,
    write_checkpoint,
)
from hud_platform.models.records import BASE, CheckpointRecord, ModelRecord, Weights
from hud_platform.store import Store, tables
from hud_platform.store.queries import Query

_SHORTEST_PREFIX = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_AUTOMATIC = re.compile(r"step-[0-9]")


CLIENT_NAMES = "client_names"
"""Metric of a checkpoint with the names that clients of a foreign protocol gave it, and what they said with each."""
REQUEST = "idempotency_request"
"""Metric of a checkpoint that holds the digest of the request under its idempotency key."""
OF_NODE = ("idempotency_key", REQUEST, CLIENT_NAMES)
"""Metrics that a copy of a checkpoint does not have."""


class CheckpointLink(NamedTuple):
    """Place of a checkpoint in the tree."""

    id: str
    parent_id: str | None
    name: str
    folder: str | None
    """None after its files were deleted."""


class Tree:
    """The checkpoints of every model of one store."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def place(self, model_id: str) -> Path:
        """Return the folder that holds a model's checkpoints."""
        return self.folder / model_id / "checkpoints"

    def get(self, checkpoint_id: str) -> CheckpointRecord:
        """Return a checkpoint of any model by its whole id. Raises `NotFoundError` where there is none."""
        nodes = tables.checkpoints
        row = self.store.row(sa.select(nodes).where(nodes.c.id == plain(checkpoint_id)))
        if row is None:
            raise NotFoundError(f"There is no checkpoint {checkpoint_id!r}.")
        return _record(row)

    def has(self, checkpoint_id: str) -> bool:
        """True for the whole id of a checkpoint of any model."""
        nodes = tables.checkpoints
        query = sa.select(nodes.c.id).where(nodes.c.id == checkpoint_id)
        return self.store.row(query) is not None

    def nodes(self, model: ModelRecord) -> list[CheckpointRecord]:
        """Return a model's own checkpoints, oldest first; see `ids` and `records` for those that may be many."""
        return self._records(_of_model(model))

    def links(self, model: ModelRecord) -> list[CheckpointLink]:
        """Return the links of a model's own checkpoints, oldest first: without metrics, which are most of a row."""
        columns = [tables.checkpoints.c[name] for name in CheckpointLink._fields]
        query = _of_model(model).with_only_columns(*columns)
        return [CheckpointLink(*row) for row in self.store.rows(query)]

    def ids(self, model: ModelRecord, limit: int | None = None, offset: int = 0) -> list[str]:
        """Return the ids of a page of a model's own checkpoints, or of all from `offset`, oldest first."""
        query = _of_model(model).with_only_columns(tables.checkpoints.c.id)
        # An offset without a limit is no SQL in every database.
        rows = self.store.rows(query if limit is None else query.limit(limit).offset(offset))
        return [row.id for row in (rows[offset:] if limit is None else rows)]

    def records(self, ids: Sequence[str]) -> list[CheckpointRecord]:
        """Return at most some hundreds of checkpoints, in the order of `ids`, without those that are gone."""
        nodes = tables.checkpoints
        rows = self._records(sa.select(nodes).where(nodes.c.id.in_(ids)))
        by_id = {node.id: node for node in rows}
        return [by_id[node] for node in ids if node in by_id]

    def with_files(self, model: ModelRecord) -> list[CheckpointRecord]:
        """Return those of a model's own checkpoints whose files are there, oldest first."""
        return self._records(_of_model(model).where(tables.checkpoints.c.folder.is_not(None)))

    def newest(self, model: ModelRecord) -> CheckpointRecord | None:
        """Return the checkpoint of a model that was made last."""
        nodes = tables.checkpoints
        query = sa.select(nodes).where(nodes.c.model_id == model.id)
        row = self.store.row(query.order_by(nodes.c.created_at.desc()).limit(1))
        return None if row is None else _record(row)

    def _records(self, query: Query) -> list[CheckpointRecord]:
        return [_record(row) for row in self.store.rows(query)]

    def summary(self, models: Sequence[str]) -> dict[str, tuple[int, float | None]]:
        """Return how many checkpoints each model has, and the reward of its head."""
        nodes, models_table = tables.checkpoints, tables.models
        counted = (
            sa.select(nodes.c.model_id, sa.func.count())
            .where(nodes.c.model_id.in_(models))
            .group_by(nodes.c.model_id)
        )
        heads = (
            sa.select(models_table.c.id, nodes.c.mean_reward)
            .join(nodes, nodes.c.id == models_table.c.head_checkpoint_id)
            .where(models_table.c.id.in_(models))
        )
        rewards = {row.id: row.mean_reward for row in self.store.rows(heads)}
        return {row[0]: (row[1], rewards.get(row[0])) for row in self.store.rows(counted)}

    def find(self, model: ModelRecord, reference: str) -> str | None:
        """Return the id of a checkpoint of `model` by id, unique start of an id, name, or `head`.

        `base` is the model's origin: None, or for a fork the checkpoint from which it was forked.
        Raises `NotFoundError` where there is none, `UsageError` for a start of several ids.
        """
        if reference == BASE:
            return model.config.origin_checkpoint
        if reference == "head":
            return model.head_checkpoint_id
        wanted = plain(reference.strip())
        exact = self._called(model, wanted)
        if exact is not None:
            return exact
        nodes = self.nodes(model)
        if wanted == model.config.origin_checkpoint:
            return wanted
        lowered = wanted.lower().replace("-", "")
        matches = [node for node in nodes if node.id.startswith(lowered)]
        if len(lowered) >= _SHORTEST_PREFIX and len(matches) == 1:
            return matches[0].id
        if len(lowered) >= _SHORTEST_PREFIX and matches:
            raise UsageError(
                f"{reference!r} begins the ids of {len(matches)} checkpoints of {model.slug!r}; give more of it."
            )
        # step-12 without the suffix that distinguishes branches, if only one branch has it.
        named = [node for node in nodes if node.name.rpartition("-")[0] == wanted]
        if len(named) == 1:
            return named[0].id
        hint = did_you_mean(reference, [*(node.name for node in reversed(nodes)), BASE])
        raise NotFoundError(f"Model {model.slug!r} has no checkpoint {reference!r}{hint}")

    def _called(self, model: ModelRecord, wanted: str) -> str | None:
        """Return the id of the checkpoint of this id or name."""
        nodes = tables.checkpoints
        query = (
            sa.select(nodes.c.id)
            .where(
                nodes.c.model_id == model.id, sa.or_(nodes.c.id == wanted, nodes.c.name == wanted)
            )
            .order_by(nodes.c.created_at, nodes.c.step, nodes.c.id)
            .limit(1)
        )
        row = self.store.row(query)
        return None if row is None else row.id

    def weights(self, node: CheckpointRecord, model: ModelRecord) -> Weights:
        """Return the files of a checkpoint as a policy of `model` loads them."""
        folder = self.present(node, model)
        sampler = folder / SAMPLER
        if not sampler.is_dir():
            return Weights(model.folder)  # A system prompt over the base weights.
        if (sampler / ADAPTER_CONFIG).is_file():
            return Weights(model.folder, adapter=sampler)
        return Weights(sampler)

    def present(self, node: CheckpointRecord, model: ModelRecord) -> Path:
        """Return a checkpoint's folder. Raises `ConflictError` if it was pruned, `StoreError` if it is missing."""
        if node.folder is None:
            nearest = self._nearest(node)
            raise ConflictError(
                f"The files of checkpoint {node.name!r} of {model.slug!r} were deleted to save space, so it cannot serve, be "
                f"trained or be forked. The nearest before it whose files are there: {nearest} (all: hud models checkpoints "
                f"{model.slug}). `hud train --keep all` deletes none; `hud models name` keeps one."
            )
        if not node.folder.is_dir():
            raise StoreError(
                f"The folder {node.folder} of checkpoint {node.name!r} is missing. {self.cure(node, model)}"
            )
        return node.folder

    def verify(
        self, node: CheckpointRecord, model: ModelRecord, *, only: str | None = None
    ) -> None:
        """Compare a checkpoint's files with the hashes of its manifest. Raises `StoreError` with the cure."""
        folder = self.present(node, model)
        try:
            verify_checkpoint(folder, only=only)
        except StoreError as error:
            raise StoreError(f"{error} {self.cure(node, model)}") from error

    def cure(self, node: CheckpointRecord, model: ModelRecord) -> str:
        """Return the sentence of an error message that says how to go on without a damaged checkpoint."""
        return f"Go back to a checkpoint before it: hud models head {model.slug} --set {self._nearest(node)}"

    def _nearest(self, node: CheckpointRecord) -> str:
        """Return the name of the nearest ancestor whose files are there, or `base`."""
        place = node.parent_id
        while place is not None:
            ancestor = self.get(place)
            if ancestor.model_id != node.model_id:
                return BASE
            if ancestor.folder is not None and ancestor.folder.is_dir():
                return ancestor.name
            place = ancestor.parent_id
        return BASE

    def rename(self, model: ModelRecord, checkpoint_id: str, name: str) -> CheckpointRecord:
        """Name a checkpoint of `model` and return the changed record. Files of named checkpoints are never pruned.

        Raises `UsageError` for a name that cannot be one, `ConflictError` for one that is taken.
        """
        node = self.get(checkpoint_id)
        if node.model_id != model.id:
            raise NotFoundError(f"Checkpoint {checkpoint_id!r} is not one of {model.slug!r}'s own.")
        if _NAME.fullmatch(name) is None or name in (BASE, "head") or _AUTOMATIC.match(name):
            raise UsageError(
                f"A checkpoint cannot be named {name!r}: 1 to 60 letters, digits, '.', '_' and '-', other than 'base', 'head' "
                "and 'step-…'."
            )
        taken = self._called(model, name)
        if taken not in (None, node.id):
            raise ConflictError(f"Another checkpoint of {model.slug!r} is named {name!r} already.")
        self.present(node, model)
        nodes = tables.checkpoints
        self.store.write(sa.update(nodes).where(nodes.c.id == node.id).values(name=name))
        return self.get(node.id)

    def append(self, node: CheckpointRecord, *, expected_head: str | None) -> None:
        """Add a node and move its model's head to it, in one transaction.

        Raises `ConflictError` if the head is no longer `expected_head`, because it was moved concurrently.
        """
        with self.store.begin() as connection:
            connection.execute(sa.insert(tables.checkpoints).values(**_row(node)))
            if not _moved(connection, node, expected_head):
                raise ConflictError(
                    "The head was moved while this step was computed; the step was discarded. Send the batch again."
                )

    def set_head(self, model: ModelRecord, checkpoint_id: str | None) -> None:
        """Set the head: the node that serves and that the next step starts from. None: the base weights."""
        if checkpoint_id is not None:
            self.verify(self.get(checkpoint_id), model)
        update = sa.update(tables.models).where(tables.models.c.id == model.id)
        self.store.write(update.values(head_checkpoint_id=checkpoint_id))

    def promote(
        self,
        model: ModelRecord,
        checkpoint_id: str,
        metrics: Mapping[str, Any],
        *,
        expected_head: str | None,
    ) -> None:
        """Set the head after a decision about it, and merge `metrics`, the decision's record, in one transaction.

        Raises `ConflictError` if the head is no longer `expected_head`, which the decision compared with.
        """
        node = self.get(checkpoint_id)
        self.verify(node, model)
        with self.store.begin() as connection:
            if not _moved(connection, node, expected_head):
                raise ConflictError(
                    f"The head of {model.slug!r} was moved while {node.name!r} was compared with it; nothing was promoted. "
                    "Compare with the new head."
                )
            _annotate(connection, checkpoint_id, metrics)

    def system_prompt(self, checkpoint_id: str | None) -> str | None:
        """Return the system prompt of a checkpoint of any model; None: the base weights have none."""
        return None if checkpoint_id is None else self.get(checkpoint_id).system_prompt

    def add_prompt(self, model: ModelRecord, text: str) -> CheckpointRecord:
        """Add a checkpoint with the head's weights and a system prompt under the head, which does not move.

        Files are shared. Over the base weights there are none. An empty `text` is no prompt.
        """
        head = None if model.head_checkpoint_id is None else self.get(model.head_checkpoint_id)
        files: list[str] = []
        if head is not None:
            files = list(read_manifest(self.present(head, model)).files)
            if head.model_id != model.id:
                files = [file for file in files if file != STATE]  # As a fork's first step.
        identifier, step = new_id(), 0 if head is None else head.step
        name = node_name(step, identifier)
        node = CheckpointRecord(
            id=identifier,
            model_id=model.id,
            parent_id=None if head is None else head.id,
            step=step,
            name=name,
            folder=self.place(model.id) / name,
            created_at=now(),
            system_prompt=text or None,
        )
        assert node.folder is not None
        manifest = Manifest(
            id=identifier, model_id=model.id, parent_id=node.parent_id, step=node.step
        )

        def share(folder: Path) -> None:
            if head is not None:
                _share(head, files, folder)

        write_checkpoint(node.folder, manifest, share)
        self.store.write(sa.insert(tables.checkpoints).values(**_row(node)))
        return node

    def prompts(self, model: ModelRecord) -> list[CheckpointRecord]:
        """Return the checkpoints of a model that changed its system prompt, oldest first."""
        nodes, parents = tables.checkpoints, tables.checkpoints.alias()
        changed = nodes.c.system_prompt.is_distinct_from(parents.c.system_prompt)
        query = _of_model(model).outerjoin(parents, parents.c.id == nodes.c.parent_id)
        return self._records(query.where(changed))

    def adopt(self, model: ModelRecord, node: CheckpointRecord) -> CheckpointRecord:
        """Add a fork's checkpoint under the head of `model`, with shared files; the head does not move."""
        identifier, place = new_id(), self.place(model.id)
        manifest = read_manifest(self.present(node, model))
        name = node_name(node.step, identifier)
        made: dict[str, Any] = {
            "id": identifier,
            "model_id": model.id,
            "parent_id": model.head_checkpoint_id,
        }
        write_checkpoint(
            place / name,
            manifest.model_copy(update={**made, "idempotency_key": None}),
            lambda folder: _share(node, manifest.files, folder),
        )
        metrics = {key: value for key, value in node.metrics.items() if key not in OF_NODE}
        adopted = replace(
            node, **made, name=name, folder=place / name, created_at=now(), metrics=metrics
        )
        self.store.write(sa.insert(tables.checkpoints).values(**_row(adopted)))
        return adopted

    def withdraw(self, node: CheckpointRecord) -> None:
        """Remove an adopted checkpoint, unless it is its model's head or has children."""
        nodes, models = tables.checkpoints, tables.models
        child = nodes.alias()
        used = sa.or_(
            sa.exists().where(models.c.head_checkpoint_id == node.id),
            sa.exists().where(child.c.parent_id == node.id),
        )
        with self.store.begin() as connection:
            unused = sa.delete(nodes).where(nodes.c.id == node.id, sa.not_(used))
            removed = connection.execute(unused).rowcount == 1
        if removed and node.folder is not None:
            shutil.rmtree(node.folder, ignore_errors=True)

    def annotate(self, checkpoint_id: str, metrics: Mapping[str, Any]) -> None:
        """Merge `metrics` into the recorded metrics of a checkpoint."""
        with self.store.begin() as connection:
            _annotate(connection, checkpoint_id, metrics)

    def prune(self, model: ModelRecord, keep: Collection[str]) -> list[CheckpointRecord]:
        """Delete the files of a model's checkpoints other than `keep`; their nodes stay in the tree."""
        pruned = [node for node in self.with_files(model) if node.id not in keep]
        nodes = tables.checkpoints
        if pruned:
            update = sa.update(nodes).where(nodes.c.id.in_([node.id for node in pruned]))
            self.store.write(update.values(folder=None))
        for node in pruned:
            assert node.folder is not None
            shutil.rmtree(node.folder, ignore_errors=True)
        return pruned

    def delete_states(self, model: ModelRecord, checkpoints: Collection[str]) -> None:
        """Delete the optimizer states of these checkpoints of a model; their weights stay."""
        for node in self.with_files(model):
            if node.id in checkpoints:
                assert node.folder is not None
                delete_state(node.folder)

    def clean(self, model: ModelRecord) -> list[Path]:
        """Remove unfinished folders of a killed process. The caller must hold the model's lease."""
        names = {node.folder.name for node in self.with_files(model) if node.folder is not None}
        return remove_unfinished(self.place(model.id), names)


def _of_model(model: ModelRecord) -> Query:
    nodes = tables.checkpoints
    query = sa.select(nodes).where(nodes.c.model_id == model.id)
    return query.order_by(nodes.c.created_at, nodes.c.step, nodes.c.id)


def is_named(node: CheckpointRecord) -> bool:
    """True for a checkpoint with a name given by a person, not a generated one."""
    return node.name != node_name(node.step, node.id)


def node_name(step: int, identifier: str) -> str:
    """Return a checkpoint's name: readable, and unique across branches."""
    return f"step-{step}-{identifier[:6]}"


def _moved(connection: sa.Connection, node: CheckpointRecord, expected_head: str | None) -> bool:
    """Move the head of a node's model to the node if it is `expected_head`; returns whether it was."""
    models = tables.models
    same = models.c.head_checkpoint_id.is_not_distinct_from(expected_head)
    update = sa.update(models).where(models.c.id == node.model_id, same)
    return connection.execute(update.values(head_checkpoint_id=node.id)).rowcount == 1


def _annotate(connection: sa.Connection, checkpoint_id: str, metrics: Mapping[str, Any]) -> None:
    nodes = tables.checkpoints
    same = nodes.c.id == checkpoint_id
    recorded = connection.execute(sa.select(nodes.c.metrics).where(same)).scalar_one()
    connection.execute(sa.update(nodes).where(same).values(metrics={**(recorded or {}), **metrics}))


def _share(node: CheckpointRecord, files: Collection[str], folder: Path) -> None:
    """Link or copy a checkpoint's files into a fresh folder."""
    assert node.folder is not None
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(node.folder / name, folder / name)


def _row(node: CheckpointRecord) -> dict[str, Any]:
    return {**asdict(node), "folder": str(node.folder)}


def _record(row: sa.Row[tuple[object, ...]]) -> CheckpointRecord:
    folder = Path(row.folder) if row.folder else None
    return CheckpointRecord(**{**row._mapping, "folder": folder, "metrics": row.metrics or {}})
