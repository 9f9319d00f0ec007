"""Token ids of rendered prompts: control tokens only where the template wrote them.

`<|im_end|>` in a user's or a tool's text is encoded by its characters, as by a tokenizer without that token; the ids
around it are unchanged.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import compress

from tokenizers import AddedToken, Encoding, Tokenizer

from hud.engine.chat.template_text import Span, TemplateText
from hud.engine.chat.tokenizers.native_errors import refused_by
from hud.engine.chat.tokenizers.tokenizer_file import MOST_CHARACTERS
from hud.errors import UsageError

_CACHED = 64
"""Number of cached texts: runs of a group share a prompt, and tools often return equal results."""
_MARK = re.compile(r"<[|｜]|</?(?:think|tool_)")
_PRIVATE = 0x100000
"""First code point of a plane for private use."""


class PromptTokenizer:
    """A tokenizer for one chat template's prompts.

    Control tokens are the added tokens that are special, those that the template's source spells, and those that are written
    like marks of a conversation (`<|...|>`, `<think>`, `<tool_call>`). Other added tokens (Gemma's runs of newlines and HTML
    tags) are text, in the template too.
    """

    def __init__(self, tokenizer: Tokenizer, template: str, growth: float = 1.0) -> None:
        """`growth` bounds how many times as long the tokenizer makes a text."""
        self.tokenizer = tokenizer
        self._longest = int(MOST_CHARACTERS / growth)
        self._controls = {
            token: added
            for token, added in tokenizer.get_added_tokens_decoder().items()
            if _is_control(added, template)
        }
        self._encoded = lru_cache(maxsize=_CACHED)(self._encode)

    def raw(self, text: str) -> list[int]:
        """Return the ids of trusted text, including control tokens."""
        return list(self._encoded(text)[0])

    def encode(self, text: TemplateText) -> list[int]:
        """Return the ids of a prompt. Raises `UsageError` for one that is too long, or that the tokenizer cannot encode."""
        ids, controls = self._encoded(text)
        return list(ids) if _within(controls, text.own) else self._separated.encode(text)

    def _encode(self, text: str) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        """Return the ids of text, and the spans of its control tokens, the callers' included."""
        if len(text) > self._longest:
            raise UsageError(
                f"The prompt has {len(text):,} characters; this model's tokenizer takes {self._longest:,} at most. "
                "Shorten it."
            )
        encoding = _encoding(self.tokenizer, text)
        ids = encoding.ids
        places = compress(range(len(ids)), map(self._controls.__contains__, ids))
        return tuple(ids), tuple(_span(encoding, place) for place in places)

    @cached_property
    def _separated(self) -> _SeparatedTokenizer:
        return _SeparatedTokenizer(self.tokenizer, self._controls)


class _SeparatedTokenizer:
    """The tokenizer with secret, unguessable spellings of its control tokens.

    It shares the vocabulary, so creating it is fast; it is used for text that spells control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, controls: dict[int, AddedToken]) -> None:
        self._controls = frozenset(controls)
        # 64 random bits, and the token's index.
        secret = "".join(chr(_PRIVATE + secrets.randbelow(0xFFFE)) for _ in range(4))
        self._spelled = {
            added.content: secret + chr(_PRIVATE + place)
            for place, added in enumerate(controls.values())
        }
        longest_first = sorted(self._spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._tokenizer = Tokenizer(tokenizer.model)
        self._tokenizer.normalizer = tokenizer.normalizer
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        added_tokens = tokenizer.get_added_tokens_decoder()
        self._fill_gaps(secret, len(added_tokens))
        respelled = [
            _respelled(added, self._spelled.get(added.content, added.content))
            for added in added_tokens.values()
        ]
        self._tokenizer.add_tokens(respelled)
        made = [self._tokenizer.token_to_id(added.content) for added in respelled]
        self._ids = dict(zip(made, added_tokens, strict=True))
        """The model's ids of this tokenizer's added tokens."""
        self._own = {own for own, token in self._ids.items() if token in controls}

    def encode(self, text: TemplateText) -> list[int]:
        """Return the ids of a prompt."""
        pieces: list[str] = []
        at = 0
        plain = str.__str__(text)
        for start, end in text.own:
            own = self._pattern.sub(lambda match: self._spelled[match[0]], plain[start:end])
            pieces += (plain[at:start], own)
            at = end
        spelled = "".join((*pieces, plain[at:]))
        encoding = _encoding(self._tokenizer, spelled)
        ids: list[int] = []
        for place, token in enumerate(encoding.ids):
            if token in self._controls and token not in self._own:
                # The vocabulary itself contains the spelling as one piece: encode character by character.
                start, end = _span(encoding, place)
                for character in spelled[start:end]:
                    ids += _encoding(self._tokenizer, character).ids
            else:
                ids.append(self._ids.get(token, token))
        return ids

    def _fill_gaps(self, secret: str, count: int) -> None:
        """Fill gaps in the vocabulary, so that the ids of `count` added tokens, from its size on, are free."""
        model = self._tokenizer.model
        size = self._tokenizer.get_vocab_size(with_added_tokens=False)
        if all(model.id_to_token(size + place) is None for place in range(count)):
            return
        gaps = max(self._tokenizer.get_vocab(with_added_tokens=False).values()) + 1 - size
        self._tokenizer.add_tokens([f"{secret}{place}" for place in range(gaps)])


def _encoding(tokenizer: Tokenizer, text: str) -> Encoding:
    """Encode text without automatically added tokens."""
    try:
        # A batch of one: unlike `encode`, it lets other threads run.
        with refused_by("encode this text"):
            return tokenizer.encode_batch([text], add_special_tokens=False)[0]
    except TypeError:  # The error of tokenizers for a string that is not UTF-8.
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The prompt holds {text[error.start]!a}, a surrogate without its other half, which is no character. "
                "Leave it out, or decode the text with errors='replace'."
            ) from None
        raise


def _span(encoding: Encoding, place: int) -> Span:
    """Return the span of a token's text; automatically added tokens have none."""
    span = encoding.token_to_chars(place)
    assert span is not None
    return span


def _is_control(added: AddedToken, template: str) -> bool:
    text = added.content
    spelled = bool(text.strip()) and text in template
    return added.special or spelled or _MARK.match(text) is not None


def _respelled(added: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content,
        single_word=added.single_word,
        lstrip=added.lstrip,
        rstrip=added.rstrip,
        normalized=added.normalized,
        special=added.special,
    )


def _within(places: Iterable[Span], spans: tuple[Span, ...]) -> bool:
    """Return, for each position, whether it is in one of the spans. Both are sorted."""
    remaining = iter(spans)
    start, end = 0, 0
    for first, last in places:
        while last > end:
            span = next(remaining, None)
            if span is None:
                return False
            start, end = span
        if first < start:
            return False
    return True
