"""Sources of base weights: folders in the Hugging Face layout, of this machine or fetched from the hub."""

from __future__ import annotations

import re
from pathlib import Path

from hud.errors import NotFoundError, UsageError


def check_folder(folder: Path) -> None:
    """Raise `UsageError`, naming what is missing, for a folder that the engine could not load."""
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise UsageError(f"{folder} holds no {needed}, so it is no Hugging Face model folder.")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} holds no *.safetensors; save the weights in that format.")
    from hud.engine.config import DecoderConfig

    DecoderConfig.from_folder(folder)


def is_hub_id(source: str) -> bool:
    """True for what may be a model's id on the Hugging Face hub."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source))


def from_hub(source: str, *, public: bool = False) -> Path:
    """Fetch a model from the hub. Raises `NotFoundError` for what is no hub id, `UsageError` where it does not come.

    With `public` only what anybody can read there: neither the server's token nor what it fetched with it.
    """
    if not is_hub_id(source):
        raise NotFoundError(
            f"There is no folder {source!r}, and it is no hub id (OWNER/NAME) either."
        )
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise UsageError(
            "Fetching a model needs huggingface_hub: pip install 'openhud[train]', or give a folder."
        ) from None
    try:
        wanted = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
        if public:
            # A model that was fetched with a token lies in the cache, from where it would be taken.
            HfApi(token=False).auth_check(source)
        token = False if public else None
        return Path(snapshot_download(source, allow_patterns=wanted, token=token))
    # The hub's client raises many kinds; each means that it did not come.
    except Exception as error:
        problem = str(error).strip().splitlines()
        raise UsageError(
            f"{source!r} could not be fetched from the hub ({problem[0] if problem else type(error).__name__}). "
            "Check the id and the network, or give a folder."
        ) from error
