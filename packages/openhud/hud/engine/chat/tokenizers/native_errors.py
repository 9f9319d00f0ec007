"""Errors of the native code of tokenizers: a bare `Exception`, or a panic, which is no `Exception` and ends a request untold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hud.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@contextmanager
def refused_by(action: str) -> Iterator[None]:
    """Raise `UsageError` where the native code fails; `action` is what it was to do: "encode this text"."""
    try:
        yield
    except BaseException as error:
        # The class of a panic is in no module.
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise UsageError(
                f"The model's tokenizer cannot {action} ({error}). Use a model with another tokenizer."
            ) from None
        raise


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of ids, control tokens included. Raises `UsageError` where the tokenizer's decoder fails."""
    with refused_by("decode its own tokens"):
        text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return text
