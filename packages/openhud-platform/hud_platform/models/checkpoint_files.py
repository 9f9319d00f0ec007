"""Checkpoint folders on disk: written atomically, so that a folder is either complete or absent.

    <folder>/manifest.json          step, parent, metrics, and the SHA-256 of every file below
    <folder>/sampler/               weights as a Hugging Face folder, or an adapter in PEFT's format
    <folder>/state.safetensors      state of the next step: optimizer moments, random number generators

A checkpoint is written to a temporary folder in the same parent, flushed to the disk, then renamed. This module
handles files only, not the weights in them, the database or heads.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from hud.durable_files import make_folder, rename_folder, write_file
from hud.errors import StoreError, StoreFullError

MANIFEST = "manifest.json"
SAMPLER = "sampler"
STATE = "state.safetensors"
_UNFINISHED = ".writing-"


class Manifest(BaseModel):
    """Manifest of a checkpoint: its origin, and the hashes of its files."""

    id: str
    model_id: str
    parent_id: str | None = None
    step: int
    idempotency_key: str | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of each file, by its path inside the folder."""
    node: dict[str, Any] | None = None
    """Node of the tree that a recovery appends, for a state without a checkpoint."""


def write_checkpoint(
    folder: Path, manifest: Manifest, write: Callable[[Path], None], *, flush: bool = True
) -> Manifest:
    """Write a checkpoint to `folder` atomically and return its manifest; `write` fills the empty folder passed to it.

    A process killed at any point leaves `folder` absent or complete. Without `flush`, which costs a small model more than a
    step, a machine that loses its power may leave it damaged; its hashes tell. Raises `StoreError` if a write fails.
    """
    unfinished = folder.with_name(f"{_UNFINISHED}{folder.name}")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        make_folder(folder.parent)
        unfinished.mkdir()
        write(unfinished)
        files = sorted(path for path in unfinished.rglob("*") if path.is_file())
        hashes = {str(path.relative_to(unfinished)): _hash(path) for path in files}
        manifest = manifest.model_copy(update={"files": hashes})
        (unfinished / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        if flush:
            rename_folder(unfinished, folder)
        else:
            os.rename(unfinished, folder)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (StoreFullError if full else StoreError)(_write_problem(folder, error)) from error
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Return a checkpoint's manifest; other files are not read. Raises `StoreError` if missing or damaged."""
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"{path} is missing, so {folder} is not a complete checkpoint.") from None
    except (ValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged: {str(error).splitlines()[0]}.") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def verify_checkpoint(folder: Path, *, only: str | None = None) -> Manifest:
    """Return the manifest after comparing every file's hash with it; `only` limits that to one subfolder.

    Raises `StoreError` for a missing or damaged file.
    """
    manifest = read_manifest(folder)
    for name, wanted in manifest.files.items():
        if only is not None and not name.startswith(only):
            continue
        path = folder / name
        try:
            digest = _hash(path)
        except FileNotFoundError:
            raise StoreError(f"{path} is missing.") from None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
        if digest != wanted:
            raise StoreError(
                f"{path} is damaged: its SHA-256 is {digest[:12]}…, not {wanted[:12]}… as written."
            )
    return manifest


def delete_state(folder: Path) -> None:
    """Delete the state of a checkpoint's next step. A process killed at any point leaves a valid checkpoint."""
    manifest = read_manifest(folder)
    if manifest.files.pop(STATE, None) is not None:
        write_file(folder / MANIFEST, manifest.model_dump_json(indent=1).encode())
    (folder / STATE).unlink(missing_ok=True)


def remove_unfinished(parent: Path, names: Collection[str]) -> list[Path]:
    """Remove leftovers of a killed process: unfinished folders, and finished ones whose name is not in `known`.

    Call only while no other process writes to `parent`.
    """
    if not parent.is_dir():
        return []
    leftovers = [
        path
        for path in sorted(parent.iterdir())
        if path.is_dir() and (path.name.startswith(_UNFINISHED) or path.name not in names)
    ]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return leftovers


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link `target` to `source`, or copy it where links are unsupported. Neither file may be rewritten later."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_problem(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full: the checkpoint {folder} could not be written, and the head stays where it was. "
            "Free some space (`hud models rm`, or train with --keep), then run the same command again."
        )
    return f"The checkpoint {folder} could not be written: {error.strerror or error}."
