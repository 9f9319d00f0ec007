"""Events of the documentation's build: links to files outside docs/, and pages without scripts and styles of
their own. Patterns of the navigation are expanded.

The server's content security policy takes scripts and styles from files alone, for the documentation as for every page. The
theme writes short scripts into each page; they become files here, and whatever else the policy blocks fails the build.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ICON = ROOT / "packages" / "openhud-dashboard" / "hud_dashboard" / "static" / "icon.svg"
STYLE = """.doc-heading code { font-size: inherit; }
.doc-contents { margin-left: 1rem; }
.md-typeset pre > code { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]+)\)")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_BLOCKED = re.compile(
    r"<script(?![^>]*\b(?:src=|type=\"application/json\"))[^>]*>|<style[ >]|<[a-z][^>]*\s(?:style|on[a-z]+)=\"[^>]*>"
)
_UNUSED = ("assets/javascripts/lunr/", ".map", "/404.html")
"""Files of the theme that no page loads: stemmers of other languages, source maps, and a page for a site without a prefix."""
_RANKED_LAST = ("commands", "decisions/", "reference/")
_scripts: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand patterns of the navigation, such as `decisions/*.md`."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(entry: Any, docs: Path) -> Any:
    """Return a part of the navigation with each pattern of a list replaced by the pages that match it, sorted."""
    if isinstance(entry, dict):
        return {title: _expanded(below, docs) for title, below in entry.items()}
    if not isinstance(entry, list):
        return entry
    expanded: list[Any] = []
    for part in entry:
        if isinstance(part, str) and "*" in part:
            expanded += sorted(path.relative_to(docs).as_posix() for path in docs.glob(part))
        else:
            expanded.append(_expanded(part, docs))
    return expanded


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the icon of the dashboard and the style of the reference."""
    files.append(File.generated(config, "images/icon.svg", content=ICON.read_bytes()))
    files.append(File.generated(config, "assets/reference.css", content=STYLE))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Replace links to files of the repository outside docs/, which the site does not have, by their text.

    Decisions, help of commands and the API reference rank after the pages on use in the site's search.
    """
    if page.file.src_uri.startswith(_RANKED_LAST):
        page.meta["search"] = {"boost": 0.2}
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def plain(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[2]))
        outside = not path.startswith("docs/") and (ROOT / path).exists()
        return link[1] if outside else link[0]

    return _LINK.sub(plain, markdown)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Move the page's scripts into files. Raises `PluginError` for what the policy would block."""
    root = "../" * page.url.count("/")

    def moved(script: re.Match[str]) -> str:
        file = f"{hashlib.sha256(script[1].encode()).hexdigest()[:12]}.js"
        _scripts[file] = script[1]
        return f'<script src="{root}assets/scripts/{file}"></script>'

    html = _SCRIPT.sub(moved, output)
    if found := _BLOCKED.search(html):
        raise PluginError(
            f"{page.file.src_uri}: the content security policy would block {found[0][:200]!r}."
        )
    return html


def on_post_build(config: MkDocsConfig) -> None:
    """Write the scripts, and remove files that no page loads."""
    folder = Path(config.site_dir)
    scripts = folder / "assets" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    for name, text in _scripts.items():
        (scripts / name).write_text(text, encoding="utf-8")
    for path in sorted(folder.rglob("*")):
        if path.is_file() and any(mark in path.as_posix() for mark in _UNUSED):
            path.unlink()
