"""Token ids to text while they come, never splitting a character.

A byte-level vocabulary is a table of bytes, and text is what the bytes say so far. For any other tokenizer a
window of ids is decoded twice, and what the newer decoding has more is new. Either way the pieces together are
what the tokenizer says of all ids at once.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"


class Vocabulary:
    """The text and bytes of single tokens of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        self.byte_level: bool = decoder.get("type") == "ByteLevel"
        self._raw: dict[int, bytes] = {}

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def raw(self, token: int) -> bytes:
        """Return a token's bytes."""
        found = self._raw.get(token)
        if found is None:
            found = self._raw[token] = self._read(token)
        return found

    def text(self, token: int) -> str:
        """Return a token's text; a part of a character is shown as U+FFFD."""
        return self.raw(token).decode("utf-8", "replace")

    def detokenizer(self) -> _Bytes | _Window:
        """Return a reader of one sequence of ids, piece by piece."""
        return _Bytes(self) if self.byte_level else _Window(self.tokenizer)

    def _read(self, token: int) -> bytes:
        if not self.byte_level:
            text: str = self.tokenizer.decode([token], skip_special_tokens=False)
            return text.encode()
        name: str = self.tokenizer.id_to_token(token) or ""
        table = _byte_of_character()
        try:
            return bytes(table[character] for character in name)
        except KeyError:
            return name.encode()  # An added token, written as it reads.


class _Bytes:
    """Decodes bytes as they come, of a byte-level vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._raw = vocabulary.raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        raw = self._raw
        return self._decoder.decode(b"".join([raw(token) for token in ids]))

    def end(self) -> str:
        """Return what is left when no more ids come."""
        return self._decoder.decode(b"", True)


class _Window:
    """Decodes from a few ids back, because how a token reads may depend on the one before it."""

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
        known = len(self._text(self._before))
        if len(text) <= known or text.endswith(_REPLACEMENT):
            return ""
        self._before, self._new = self._new, []
        # The window's own beginning must read as it did inside the sequence.
        return text[known:]

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: the character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table
