"""Constrained sampling: only tokens that can continue to a sentence of the grammar are allowed.

A grammar is in llguidance's Lark form, for one tokenizer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hud.errors import UsageError

if TYPE_CHECKING:
    import llguidance
    import tokenizers


class Constraint:
    """The state of a sequence's grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, size: int, end_id: int) -> None:
        self._matcher = matcher
        self._end_id = end_id
        self._over = False
        self._bits = np.zeros((1, (size + 31) // 32), dtype=np.int32)
        self._size = size

    def allow(self, logits: Tensor) -> None:
        """Set the logits (V,) of forbidden tokens to minus infinity, in place."""
        from llguidance.numpy import fill_next_token_bitmask

        fill_next_token_bitmask(self._matcher, self._bits)
        if self._over or not self._bits.any():
            self._bits[:] = 0
            self._bits.view(np.uint8)[0, self._end_id // 8] = 1 << (self._end_id % 8)
        allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: self._size]
        forbidden = torch.ones_like(logits, dtype=torch.bool)
        # Embedding rows beyond the vocabulary are no tokens.
        forbidden[: self._size] = torch.from_numpy(allowed == 0).to(logits.device)
        logits.masked_fill_(forbidden, float("-inf"))

    def take(self, token: int) -> None:
        """Advance by a sampled token; after an error only the end is allowed."""
        self._over = (
            self._over or self._matcher.is_stopped() or not self._matcher.consume_token(token)
        )


class Grammars:
    """Grammars over one tokenizer."""

    def __init__(self, tokenizer_json: str, end_id: int) -> None:
        """`tokenizer_json` is the text of a `tokenizer.json`."""
        try:
            import llguidance
        except ImportError:
            raise UsageError(
                "Answers in a fixed form need llguidance: pip install 'openhud[train]'."
            ) from None
        self._end_id = end_id
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, eos_token=end_id)

    def compile(self, grammar: str) -> Constraint:
        """Return the initial state. Raises `UsageError` for an invalid grammar, or an invalid schema in it."""
        import llguidance

        matcher = llguidance.LLMatcher(
            self._tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar), log_level=0
        )
        if matcher.is_error():
            raise UsageError(
                f"The form that was asked for cannot be kept: {matcher.get_error().strip()}"
            )
        return Constraint(matcher, self._tokenizer.vocab_size, self._end_id)


@dataclass(frozen=True)
class _Content:
    """A tokenizer's content as a key: checkpoints of one model, whose tokenizers are equal, share their grammars."""

    digest: str
    tokenizer: tokenizers.Tokenizer = field(compare=False)


def grammars_of(tokenizer: tokenizers.Tokenizer, end_id: int) -> Grammars:
    """Return the grammars of a loaded tokenizer and its end-of-turn token; cached by content, as they load slowly.

    A folder's path is no key: its files may be replaced.
    """
    digest = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    return _load(_Content(digest, tokenizer), end_id)


@lru_cache(maxsize=64)
def _load(content: _Content, end_id: int) -> Grammars:
    return Grammars(content.tokenizer.to_str(), end_id)
