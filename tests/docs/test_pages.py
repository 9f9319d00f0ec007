"""Pages of the documentation: one subject each, short enough to be read in one go."""

import pytest
from tests.docs.blocks import name_of, pages

MOST_WORDS = 2_500
GENERATED = ("docs/commands.md",)
"""Pages that `make docs` writes."""


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_written_page_has_at_most_2500_words(page):
    if name_of(page) not in GENERATED:
        assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS, "Split it by section."
