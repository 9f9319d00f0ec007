"""`Library`: full-text search over sections of the documentation, and reads of pages and sections by name.
Ranking is BM25 of SQLite's full-text index, in memory; headings have a higher weight than text.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from hud.errors import NotFoundError, UsageError
from hud.eval.tasksets.suggestions import did_you_mean
from hud_dashboard.documentation.pages import Page

_WORD = re.compile(r"\w+")
_MOST_TERMS = 40
_COMMON = frozenset(
    _WORD.findall(
        "a an and any are as at be by can do does for from get has have how i if in into is it its me my no not "
        "of on or our should so that the their them there this to use was we what when where which who why will "
        "with you your"
    )
)
"""Stop words."""
_FIND = """
SELECT page, heading, snippet(sections, 3, '', '', ' … ', 48)
FROM sections WHERE sections MATCH ?
ORDER BY bm25(sections, 1, 1, 4, 1) * iif(page = 'commands' OR page GLOB '*/*' AND page NOT GLOB 'integrations/*', 0.5, 1),
rowid LIMIT ?
"""
"""Search over sections; decisions, help of commands and the API reference rank after the pages on use."""


@dataclass(frozen=True)
class Found:
    """Search result: a section, which `read(page, heading)` returns."""

    page: str
    heading: str
    excerpt: str


class Library:
    """Pages with their full-text index."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        # Requests may run in other threads; SQLite serializes access.
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE sections USING "
            "fts5(page, title, heading, text, tokenize='porter unicode61')"
        )
        self._index.executemany(
            "INSERT INTO sections VALUES (?, ?, ?, ?)",
            (
                (page.name, page.title, section.heading, _body(section.text))
                for page in pages.values()
                for section in page.sections
            ),
        )

    def search(self, query: str, limit: int = 8) -> list[Found]:
        """Return the best matching sections, best first. Raises `UsageError` if `query` has no words."""
        expression = _expression(query)
        if not expression:
            raise UsageError(f"There are no words to search for in {query!r}.")
        return [Found(*row) for row in self._index.execute(_FIND, (expression, limit))]

    def read(self, page: str, section: str = "") -> str:
        """Return a page, or one section with its subsections. Raises `NotFoundError` with near matches."""
        shown = self._page(page)
        if not section:
            return shown.text
        wanted = _key(section)
        headings = [part.heading for part in shown.sections]
        near = [at for at, part in enumerate(headings) if _key(part) == wanted]
        # The reference has names that differ by case alone: `Run` and `run`.
        begin = next((at for at in near if headings[at] == section), near[0] if near else None)
        if begin is None:
            meant = did_you_mean(section.lower(), [heading.lower() for heading in headings])
            raise NotFoundError(f"The page {shown.name!r} has no section {section!r}{meant}")
        level = shown.sections[begin].level
        text = shown.sections[begin].text
        for part in shown.sections[begin + 1 :]:
            if part.level <= level:
                break
            text += part.text
        return text

    def _page(self, name: str) -> Page:
        plain = name.strip().lower().removeprefix("./").strip("/")
        plain = plain.removesuffix(".md").removeprefix("docs/")
        if plain not in self.pages:
            near = did_you_mean(plain, self.pages)
            raise NotFoundError(f"The documentation has no page {name!r}{near}")
        return self.pages[plain]


def _body(text: str) -> str:
    """Return a section without its heading, which is a separate column of the index."""
    return text.partition("\n")[2].strip() if text.startswith("#") else text.strip()


def _expression(query: str) -> str:
    """Return the FTS5 query for any of the words; adjacent pairs are added as phrases."""
    words = _WORD.findall(query.lower())
    telling = [word for word in words if word not in _COMMON] or words
    pairs = [f"{word} {next}" for word, next in pairwise(words) if {word, next} <= set(telling)]
    terms = list(dict.fromkeys([*telling, *pairs]))
    # One term for each column: a word that is common in texts can be rare, and so significant, in headings.
    return " OR ".join(
        f'{column} : "{term}"'
        for term in terms[:_MOST_TERMS]
        for column in ("{page title}", "heading", "text")
    )


def _key(heading: str) -> str:
    """Return a heading in normalized form for comparison: links write it as `groups-and-advantages`."""
    return " ".join(_WORD.findall(heading.lower()))
