"""Pages of the documentation: one subject each, short enough to be read in one go."""

import pytest
from tests.docs.blocks import ROOT, name_of, pages
from tests.docs.sentences import passages_of

MOST_WORDS = 2_500
SENTENCE_WORDS, CELL_WORDS = 30, 20
LONG_SENTENCES, LONG_CELLS = 211, 21
"""Sentences and table cells of written pages over those lengths. The numbers may only fall."""
GENERATED = ("docs/commands", "docs/models.md")
"""Pages that scripts write: docs/commands.md and docs/commands/, and the tables of docs/models.md."""


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_written_page_has_at_most_2500_words(page):
    if not name_of(page).startswith(GENERATED):
        assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "Split it by section."


def test_a_release_has_at_most_40_changes():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in text.split("\n## ")[1:]:
        assert release.count("\n- ") <= 40, "Say what the release has, not how it came about."


@pytest.mark.slow
def test_long_sentences_and_long_cells_become_fewer():
    written = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    passages = [
        (name_of(page), passage)
        for page in written
        if not name_of(page).startswith(GENERATED)
        for passage in passages_of(page.read_text(encoding="utf-8"))
    ]
    sentences = _long([one for one in passages if not one[1].in_table], SENTENCE_WORDS)
    cells = _long([one for one in passages if one[1].in_table], CELL_WORDS)
    assert len(sentences) <= LONG_SENTENCES, "\n".join(sentences)
    assert len(cells) <= LONG_CELLS, "\n".join(cells)


def _long(passages, most):
    return [
        f"{page}:{passage.line}: {passage.words} words: {passage.text}"
        for page, passage in passages
        if passage.words > most
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One two. Three four five.", [2, 3]),
        ("A piece of `hud eval tasks.py AGENT` is a word; a colon: ends nothing.", [11]),
        ("- an item\n- two more, e.g. here", [2, 4]),
        ("| a b | c |\n|---|---|\n| d e f | `g` |", [2, 1, 3, 1]),
        ("```sh\nhud eval\n```\n\n<!-- a comment. -->\n\n[A link](page.md) of words.", [4]),
    ],
)
def test_words_are_counted_as_they_are_read(text, words):
    assert [passage.words for passage in passages_of(text)] == words
