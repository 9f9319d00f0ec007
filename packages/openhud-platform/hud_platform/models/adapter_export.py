"""Export of a checkpoint's adapter as a folder that PEFT loads onto the base weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hud.engine.config import ADAPTER_CONFIG
from hud.errors import UsageError
from hud_platform.models.records import ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.models.weight_sources import place_companions


def export_adapter(
    registry: Registry, model: ModelRecord, checkpoint_id: str | None, folder: Path
) -> None:
    """Write a checkpoint's adapter, with the tokenizer and chat templates of its base, to a new folder.

    Raises `UsageError` for a checkpoint without an adapter, `StoreError` for damaged files.
    """
    if checkpoint_id is not None:
        registry.tree.verify(registry.tree.get(checkpoint_id), model)
    weights = registry.weights(model, checkpoint_id)
    if weights.adapter is None:
        raise UsageError(
            f"{model.slug!r} has no adapter there: it was trained in full, or not yet. Export its weights: "
            f"hud models export {model.slug} --to hf -o FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((weights.adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = str(weights.folder)
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(
        weights.adapter / "adapter_model.safetensors", folder / "adapter_model.safetensors"
    )
    place_companions(weights.folder, folder)
