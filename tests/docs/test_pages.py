"""Pages of the documentation: one subject each, short enough to be read in one go."""

import pytest
from tests.docs.blocks import name_of, pages

MOST_WORDS = 2_500
GENERATED = "docs/commands"
"""Pages that `make docs` writes: docs/commands.md, docs/commands/."""


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_written_page_has_at_most_2500_words(page):
    if not name_of(page).startswith(GENERATED):
        assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "Split it by section."
