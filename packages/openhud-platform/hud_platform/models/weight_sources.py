"""Sources of base weights: folders in the Hugging Face layout, of this machine or fetched from the hub."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hud.engine.chat.tokenizer_settings import TEMPLATE_FOLDER, chat_templates, format_files
from hud.engine.config import ADAPTER_CONFIG
from hud.errors import NotFoundError, StoreError, UsageError
from hud.trace import ChatMessage

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat

_COMPANIONS = (".json", ".jinja", ".txt", ".model")
MOST_BYTES = 8 << 20
"""Largest of the files beside the weights and the tokenizer, whose own limit is larger; published ones have up to 2 MB."""
TRIAL_SECONDS = 20.0
"""Processor time of the conversations that are rendered while a model is added."""
_USER: ChatMessage = {"role": "user", "content": "?"}
_TRIALS: list[list[ChatMessage]] = [
    [_USER],
    [{"role": "system", "content": "?"}, _USER],
    [_USER, {"role": "assistant", "content": "?"}, _USER],
]
"""Conversations of which a model's template must render one. Some templates need a system message."""
_LONGEST_SHOWN = 200
"""Characters of a path, or of a template's refusal, in an error message."""


def machine_path(text: str) -> Path:
    """Return the absolute path on this machine of a text, which may begin with `~`. Raises `UsageError` for a text that is none."""
    try:
        path = Path(text).expanduser().resolve()
        path.exists()
    # A home of no user; a name that is too long; a folder that is closed to this process; a NUL.
    except (OSError, RuntimeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(
            f"{text[:_LONGEST_SHOWN]!r} is no path of this machine: {reason}."
        ) from error
    return path


def check_folder(folder: Path) -> None:
    """Raise `UsageError`, naming what is missing or damaged, for a folder that the engine could not load."""
    if os.path.lexists(folder / ADAPTER_CONFIG):
        # Beside the base's own files, too: the base alone is another model than the one that was meant.
        raise UsageError(
            f"{folder} holds an adapter ({ADAPTER_CONFIG}), which is not added by itself: merge it into its base model, for example "
            "with merge_and_unload of peft, and add the folder of the merged model. A folder of the base alone has no adapter."
        )
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise UsageError(
                f"{folder} holds no {needed}, so it is not a Hugging Face model folder."
            )
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} holds no *.safetensors; save the weights in that format.")
    for path in [*format_files(folder), *folder.glob("*.safetensors*")]:
        if os.path.lexists(path) and not path.is_file():
            raise UsageError(f"{path} is not a regular file. Replace it, or leave it out.")
    for path in format_files(folder):
        if path.name != "tokenizer.json" and path.exists() and path.stat().st_size > MOST_BYTES:
            raise UsageError(
                f"{path} has {path.stat().st_size:,} bytes; {MOST_BYTES:,} are the most. Use a model with another one."
            )
    from hud.engine.pretrained import check_weights  # Loads torch.

    try:
        _read_formats(folder)
        check_weights(folder)
    except StoreError as error:  # Not the platform's own store.
        raise UsageError(str(error)) from error


def _read_formats(folder: Path) -> None:
    from hud.engine.chat.chat_format import ChatFormat
    from hud.engine.chat.template_limits import together
    from hud.engine.chat.tokenizers.tokenizer_file import try_tokenizer
    from hud.engine.config import DecoderConfig
    from hud.engine.foreign.verdicts import exact_path

    config = DecoderConfig.from_folder(folder)
    try_tokenizer(folder, config.vocab_size)
    exact_path(folder, config)
    try:
        chat_templates(folder)
    except UsageError:  # It may be trained without one; its first turn names the problem.
        return
    with together(TRIAL_SECONDS) as used_up:
        chat = ChatFormat(folder, config)
        ids, refusal = _first_prompt(chat)
        if used_up():
            raise UsageError(
                f"The chat template of {folder} takes longer than {TRIAL_SECONDS:g} s to render its first conversations. "
                "Use a model with another template."
            )
    if not ids:
        raise UsageError(
            f"The chat template of {folder} renders no conversation, not even one message of a user: {refusal} Use a model with "
            "another template."
        )
    last = max(ids)
    if last >= config.vocab_size:
        raise UsageError(
            f"The chat template of {folder} writes the token id {last}; the model knows {config.vocab_size} tokens. Use the "
            "tokenizer and the template that the weights were trained with."
        )


def _first_prompt(chat: ChatFormat) -> tuple[list[int], str]:
    """Return the ids of a prompt of the first trial conversation that the template renders; none, and the first one's refusal."""
    refusals: list[str] = []
    for conversation in _TRIALS:
        try:
            ids = list(chat.render(conversation, []))
        except UsageError as error:
            refusals.append(str(error))
        else:
            if ids:
                return ids, ""
    return [], refusals[0][:_LONGEST_SHOWN] if refusals else "it writes nothing."


def place_companions(
    source: Path, target: Path, place: Callable[[Path, Path], object] = shutil.copyfile
) -> None:
    """Add the files that complete a folder of weights to `target`: the tokenizer's files and the chat templates.

    `place` copies or links one file; files that are there are left.
    """
    for path in sorted([*source.iterdir(), *source.glob(f"{TEMPLATE_FOLDER}/*.jinja")]):
        if path.suffix not in _COMPANIONS or not path.is_file():
            continue
        added = target / path.relative_to(source)
        if path.name == "config.json" or path.name.endswith(".index.json") or added.exists():
            continue
        added.parent.mkdir(exist_ok=True)
        place(path, added)


def is_hub_id(source: str) -> bool:
    """True for a string in the form of a model id of the Hugging Face hub: OWNER/NAME."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", source))


def from_hub(source: str, *, public: bool = False, weights: bool = True) -> Path:
    """Download a model from the hub. Raises `NotFoundError` for an invalid hub id, `UsageError` if the download fails.

    Without `weights`, only its configuration and tokenizer are fetched. With `public`, only models that are readable without a token; the server's token and its private cache are not used.
    """
    if not is_hub_id(source):
        raise NotFoundError(
            f"There is no folder {source!r}, and it is not a hub id (OWNER/NAME) either."
        )
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError:
        raise UsageError(
            "Fetching a model needs huggingface_hub: pip install 'openhud[train]', or give a folder."
        ) from None
    try:
        wanted = [f"*{suffix}" for suffix in (*_COMPANIONS, *((".safetensors",) * weights))]
        wanted.append("README.md")  # The card names the licence.
        if public:
            # A model that was fetched with a token is in the cache and would be returned from there.
            HfApi(token=False).auth_check(source)
        token = False if public else None
        return Path(snapshot_download(source, allow_patterns=wanted, token=token))
    # The hub's client raises many exception types; each means that the download failed.
    except Exception as error:
        problem = str(error).strip().splitlines()
        raise UsageError(
            f"{source!r} could not be fetched from the hub ({problem[0] if problem else type(error).__name__}). "
            "Check the id and the network, or give a folder."
        ) from error
