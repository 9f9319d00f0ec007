"""Pages of the documentation, split into sections at their headings.
Read from the installed package, or from the source folder of a checkout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hud.errors import NotFoundError
from hud_dashboard.documentation.api_reference import expand

_HEADING = re.compile(r"(#{1,6})\s+(.+?)\s*#*")
_FENCE = re.compile(r"\s{0,3}(```+|~~~+)")
PACKAGE = Path(__file__).parents[1]
"""Folder of the installed package, or of the source."""
_README = "readme"


@dataclass(frozen=True)
class Section:
    """A heading with its text, up to the next heading."""

    heading: str
    level: int
    text: str
    """Markdown source, including the heading."""


@dataclass(frozen=True)
class Page:
    """One file; `name` is its path without the ending, such as `training` or `decisions/0004-one-decoder`."""

    name: str
    sections: tuple[Section, ...]

    @property
    def title(self) -> str:
        """The first heading."""
        return self.sections[0].heading

    @property
    def text(self) -> str:
        """Markdown source of the page."""
        return "".join(section.text for section in self.sections)


def read_pages(package: Path = PACKAGE) -> dict[str, Page]:
    """Return all pages by name, the overview first. Raises `NotFoundError` if the installation has none."""
    pages = {}
    for folder, pattern in _folders(package):
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).with_suffix("").as_posix()
            name = _README if name == "README" else name
            text = path.read_text(encoding="utf-8")
            text = expand(text) if name.startswith("reference/") else text
            pages[name] = Page(name, tuple(_sections(name, text)))
    if not pages:
        raise NotFoundError(f"{package} holds no documentation; install openhud again.")
    return pages


def _folders(package: Path) -> list[tuple[Path, str]]:
    """Return the folders of pages: those of the checkout of `package`, or else of the package."""
    if checkout := checkout_of(package):
        return [(checkout, "README.md"), (checkout / "docs", "**/*.md")]
    installed = package / "docs_pages"
    return [(installed, "README.md"), (installed, "**/*.md")]


def checkout_of(package: Path) -> Path | None:
    """Return the checkout whose source a package is; None for an installed package."""
    checkout = package.parents[2]
    in_checkout = package.parents[1].name == "packages" and (checkout / "pyproject.toml").is_file()
    return checkout if in_checkout else None


def _sections(name: str, text: str) -> Iterator[Section]:
    """Split a page at its headings; a `#` inside a code block is not a heading."""
    heading, level, lines, fence = name, 1, list[str](), ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif mark:
            fence = mark[1]
        elif begins := _HEADING.fullmatch(line.rstrip("\n")):
            if "".join(lines).strip():
                yield Section(heading, level, "".join(lines))
            heading, level, lines = begins[2], len(begins[1]), []
        lines.append(line)
    yield Section(heading, level, "".join(lines))
