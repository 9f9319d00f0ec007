"""Sentences and table cells of a page, and their words: what a reader reads, without code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"'(*\d\[])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|vs|cf|etc|No)\.$")


@dataclass(frozen=True)
class Passage:
    """A sentence, or a cell of a table."""

    line: int
    text: str
    in_table: bool

    @property
    def words(self) -> int:
        """Number of words; a piece of code is one."""
        return len([word for word in self.text.split() if re.search(r"\w", word)])


def passages_of(text: str) -> Iterator[Passage]:
    """Yield the sentences of a page's paragraphs and list items, and the cells of its tables."""
    tokens = MarkdownIt().enable("table").parse(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    line, cell = 1, False
    for token in tokens:
        if token.map:
            line = token.map[0] + 1
        cell = token.type in ("td_open", "th_open") or (
            cell and token.type not in ("td_close", "th_close")
        )
        if token.type == "inline":
            shown = _shown(token)
            for sentence in [shown] if cell else _sentences(shown):
                yield Passage(line, sentence, cell)


def _shown(token: Token) -> str:
    parts = []
    for child in token.children or []:
        if child.type == "code_inline":
            parts.append("`code`")
        elif child.type in ("text", "softbreak", "hardbreak"):
            parts.append(child.content if child.type == "text" else " ")
    return "".join(parts)


def _sentences(text: str) -> Iterator[str]:
    pending = ""
    for part in _END.split(text):
        pending = f"{pending} {part}".strip()
        if not _ABBREVIATION.search(pending):
            yield pending
            pending = ""
    if pending:
        yield pending
