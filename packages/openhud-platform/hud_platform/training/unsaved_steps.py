"""Steps without a checkpoint, on disk: weights and optimizer state from which the next session makes a checkpoint.

A supervised training takes thousands of small steps, each of which must survive a killed process; a node of the tree for
each would be too many. One folder holds the newest state. Used under the model's lease.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hud.errors import StoreError
from hud_platform.models.checkpoint_files import (
    Manifest,
    link_or_copy,
    read_manifest,
    verify_checkpoint,
    write_checkpoint,
)
from hud_platform.models.checkpoint_tree import Tree
from hud_platform.models.records import CheckpointRecord, ModelRecord

_NODE = TypeAdapter(CheckpointRecord)


class UnsavedSteps:
    """The folder of a model's steps since its last checkpoint."""

    def __init__(self, tree: Tree, model_id: str) -> None:
        self.tree = tree
        self.model_id = model_id
        self.folder = tree.place(model_id).with_name("unsaved")

    def write(
        self, node: CheckpointRecord, manifest: Manifest, write: Callable[[Path], None]
    ) -> None:
        """Replace the state on disk. `node` is the checkpoint that the next session would make of it."""
        node_values: dict[str, Any] = _NODE.dump_python(node, mode="json")
        manifest = manifest.model_copy(update={"node": node_values})
        write_checkpoint(self.folder / node.id, manifest, write, flush=False)
        for older in self._folders():
            if older.name != node.id:
                shutil.rmtree(older, ignore_errors=True)

    def clear(self) -> None:
        """Delete the state: a checkpoint holds its steps, or the head was moved."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def recover(self, model: ModelRecord) -> CheckpointRecord | None:
        """Append the state as a checkpoint under the head, and delete it; None without one that continues the head."""
        newest: tuple[CheckpointRecord, Manifest] | None = None
        for folder in self._folders():
            try:
                manifest = verify_checkpoint(folder)
                node = _NODE.validate_python(manifest.node)
            except (StoreError, ValueError):
                continue  # Incomplete: its process was killed, or its machine lost power.
            if node.parent_id == model.head_checkpoint_id and (
                newest is None or node.step > newest[0].step
            ):
                newest = node, manifest
        recovered = None
        if newest is not None:
            self.tree.clean(
                model
            )  # A process killed while it recovered leaves a folder without a node.
            recovered = self._append(*newest)
        self.clear()
        return recovered

    def count(self, model: ModelRecord) -> int:
        """Return the number of optimizer steps beyond the head that are on disk. Hashes are not verified."""
        steps = [0]
        for folder in self._folders():
            with suppress(StoreError, ValueError):
                node = _NODE.validate_python(read_manifest(folder).node)
                if node.parent_id == model.head_checkpoint_id:
                    head = node.parent_id
                    steps.append(node.step - (0 if head is None else self.tree.get(head).step))
        return max(steps)

    def _append(self, node: CheckpointRecord, manifest: Manifest) -> CheckpointRecord:
        source = self.folder / node.id

        def share(folder: Path) -> None:
            for name in manifest.files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(source / name, folder / name)

        appended = replace(node, folder=self.tree.place(self.model_id) / node.name)
        assert appended.folder is not None
        write_checkpoint(appended.folder, manifest.model_copy(update={"node": None}), share)
        self.tree.append(appended, expected_head=node.parent_id)
        return appended

    def _folders(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() else []
