"""Code blocks of Markdown pages: language, place, and the marks that stand before them.

A mark is an HTML comment before a block, with or without a blank line between:

    <!-- file env.py -->           the block is a file of this name, for the blocks after it
    <!-- not run: REASON -->       the block is not executed, for this reason

A block of language `text` that follows a Python or shell block is its output; `...` stands for anything, and so does
`$ command` followed by lines in a block of language `console`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
SHELL = ("sh", "console")
_FILE = re.compile(r"<!-- file (\S+) -->\n$")
_NOT_RUN = re.compile(r"<!-- not run: (.{12,}) -->\n$")


@dataclass(frozen=True)
class Block:
    """One code block of a page."""

    page: str
    line: int
    """Line of the page on which the code begins, from 1."""
    language: str
    text: str
    file: str | None = None
    not_run: str | None = None
    output: str | None = None
    """Shown output, where the page shows any."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


INTEGRATIONS = ROOT / "docs" / "integrations"
"""Pages that need a package which has an environment of its own; `tests/integrations` runs them there."""


def pages() -> list[Path]:
    """Return the README and every page of the documentation that runs in the project's own environment."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in found if page.parent != INTEGRATIONS)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(text: str, page: str) -> list[Block]:
    """Return the code blocks of a page, in order; an indented block without a fence is shell."""
    lines = text.splitlines(keepends=True)
    found: list[Block] = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type not in ("fence", "code_block"):
            continue
        assert token.map is not None
        first = token.map[0]
        above = (line.lstrip() for line in reversed(lines[:first]) if line.strip())
        before = next(above, "")
        file, not_run = _FILE.match(before), _NOT_RUN.match(before)
        fenced = token.type == "fence"
        found.append(
            Block(
                page=page,
                line=first + 1 + fenced,
                language=token.info.strip() if fenced else "sh",
                text=token.content,
                file=file[1] if file else None,
                not_run=not_run[1] if not_run else None,
            )
        )
    return _with_outputs(found, lines)


def _with_outputs(blocks: list[Block], lines: list[str]) -> list[Block]:
    """Join each shown output to the block that it belongs to."""
    joined: list[Block] = []
    for block in blocks:
        previous = joined[-1] if joined else None
        shown = block.language == "text" and block.not_run is None and block.file is None
        if shown and previous is not None and previous.language in ("python", *SHELL):
            joined[-1] = Block(**{**vars(previous), "output": block.text})
        else:
            joined.append(block)
    return joined


def matches(expected: str, actual: str) -> bool:
    """Compare output line by line; `...` stands for any text, runs of spaces are one."""
    pattern = r".*?".join(re.escape(part) for part in _plain(expected).split("..."))
    return re.fullmatch(pattern, _plain(actual), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
