"""Exports of a model's weights: a Hugging Face folder, or one file of a registered format."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hud.engine.lora import load_adapter, merge
from hud.engine.model_files.formats import ModelFileFormat, format_named
from hud.engine.pretrained import load_decoder, save_decoder
from hud.errors import StoreError
from hud_platform.models.records import FOLDER, Weights
from hud_platform.models.weight_sources import place_companions
from hud_platform.models.whole_model import complete, is_part_of


def export_weights(
    weights: Weights,
    folder: Path,
    name: str,
    *,
    base: Path,
    form: str = FOLDER,
    dtype: str | None = None,
) -> None:
    """Write weights, an adapter merged into them, to a folder; as a file of the format `form` unless it is `FOLDER`.

    Where only the text model of `base` is trained, the folder has the rest of it, too.

    `dtype` is that of a file; None: that of the weights. Raises `StoreError` if the folder cannot be written, `UsageError` for a
    model that the format cannot hold.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if form == FOLDER:
            _write_folder(weights, folder)
            if is_part_of(folder, base):
                complete(folder, base)
            return
        _write_file(weights, folder / name, format_named(form), dtype)
    except OSError as error:
        raise StoreError(
            f"{folder} could not be written: {error.strerror or error}. Free some space, or choose another folder."
        ) from error


def _write_file(
    weights: Weights, stem: Path, file_format: ModelFileFormat, dtype: str | None
) -> None:
    """Write weights as one file beside `stem`, which is there only if it is whole."""
    with tempfile.TemporaryDirectory(prefix=".export-", dir=stem.parent) as scratch:
        source = weights.folder
        if weights.adapter is not None:
            source = Path(scratch) / "merged"
            source.mkdir()
            _write_folder(weights, source)
        file = Path(scratch) / f"{stem.name}{file_format.suffix}"
        file_format.write(source, file, dtype=dtype)
        file.replace(stem.parent / file.name)


def _write_folder(weights: Weights, folder: Path) -> None:
    decoder = load_decoder(weights.folder)
    if weights.adapter is not None:
        load_adapter(decoder, weights.adapter)
        merge(decoder)
    save_decoder(decoder, folder)
    place_companions(weights.folder, folder)
