"""Words of a run's text that are indexed."""

from hypothesis import example, given
from hypothesis import strategies as st

from hud_platform.search.query import WORD
from hud_platform.search.run_words import words_of

TEXT = st.text(st.characters(codec="ascii")) | st.text()


@given(TEXT)
@example("Ab_c9 KeyError: 'x'\x1f\x00\n")
@example("x" * 64 + " " + "y" * 65 + "_" + "Z" * 130)
@example("İstanbul STRASSE ß")
def test_the_words_are_those_of_a_query(text):
    assert words_of(text) == WORD.findall(text.lower())
