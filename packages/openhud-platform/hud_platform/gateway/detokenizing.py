"""Incremental detokenization: token ids to text, without splitting a character.
With a byte-level vocabulary, the bytes of tokens are decoded as UTF-8. With any other tokenizer, a window of ids is
decoded before and after an id is added, and the difference is the new text. In both cases the concatenated pieces
equal the tokenizer's decoding of all ids.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hud.engine.chat.tokenizers.native_errors import decode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"


class Vocabulary:
    """Text and bytes of the single tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        self.byte_level: bool = decoder.get("type") == "ByteLevel"
        self._raw: dict[int, bytes] = {}

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def raw(self, token: int) -> bytes:
        """Return a token's bytes."""
        piece = self._raw.get(token)
        if piece is None:
            piece = self._raw[token] = self._read(token)
        return piece

    def text(self, token: int) -> str:
        """Return a token's text; an incomplete character becomes U+FFFD."""
        return self.raw(token).decode("utf-8", "replace")

    def detokenizer(self) -> _Bytes | _Window:
        """Return an incremental detokenizer for one sequence of ids."""
        return _Bytes(self) if self.byte_level else _Window(self.tokenizer)

    def _read(self, token: int) -> bytes:
        if not self.byte_level:
            return decode(self.tokenizer, [token]).encode()
        name: str = self.tokenizer.id_to_token(token) or ""
        table = _byte_of_character()
        try:
            return bytes(table[character] for character in name)
        except KeyError:
            return name.encode()  # An added token: its name is its text.


class _Bytes:
    """Incremental detokenizer of a byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._raw = vocabulary.raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, ids: Sequence[int]) -> str:
        """Add ids and return the new complete text."""
        raw = self._raw
        return self._decoder.decode(b"".join([raw(token) for token in ids]))

    def end(self) -> str:
        """Return the remaining text at the end of the sequence."""
        return self._decoder.decode(b"", True)


class _Window:
    """Incremental detokenizer over a window of ids: the text of a token may depend on its predecessor."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []
        self._new: list[int] = []

    def take(self, ids: Sequence[int]) -> str:
        pieces = []
        for token in ids:
            self._new.append(token)
            pieces.append(self._complete())
        return "".join(pieces)

    def end(self) -> str:
        text = self._text(self._before + self._new)[len(self._text(self._before)) :]
        self._before, self._new = [], []
        return text

    def _complete(self) -> str:
        text = self._text(self._before + self._new)
        decoded = len(self._text(self._before))
        if len(text) <= decoded or text.endswith(_REPLACEMENT):
            return ""
        self._before, self._new = self._new, []
        # The first ids of the window must decode as they did within the sequence.
        return text[decoded:]

    def _text(self, ids: list[int]) -> str:
        return decode(self._tokenizer, ids)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's table: the byte of each character in the token names of a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table
