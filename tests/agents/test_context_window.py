"""What is left out of a conversation that grew too long: the oldest pictures of tools, and nothing else."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.agents.context_window import DROPPED, drop_oldest_images

TEXT = st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=3))
PICTURE = st.builds(
    lambda name: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}},
    st.text("abcd", max_size=4),
)
CONTENT = st.one_of(st.none(), st.text(max_size=3), st.lists(TEXT | PICTURE, max_size=4))
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant", "tool"]),
        CONTENT,
    ),
    max_size=8,
)


def parts(messages, role):
    return [
        part
        for message in messages
        if message["role"] == role and isinstance(message["content"], list)
        for part in message["content"]
    ]


def pictures(messages, role="tool"):
    return [part for part in parts(messages, role) if part["type"] == "image_url"]


@pytest.mark.slow
@given(MESSAGES)
def test_the_newest_pictures_stay_in_their_order_and_words_stay_where_they_are(messages):
    before = copy.deepcopy(messages)
    held = list(messages)
    dropped = drop_oldest_images(messages)
    shown = pictures(before)
    assert dropped == len(shown) // 2
    assert pictures(messages) == shown[dropped:]
    assert [part["text"] for part in parts(messages, "tool") if part["type"] == "text"].count(
        DROPPED
    ) == dropped
    for role in ("system", "user", "assistant"):
        assert parts(messages, role) == parts(before, role)
    # What was recorded of the conversation before is not changed behind its back.
    assert held == before


@given(MESSAGES)
def test_in_the_end_one_picture_is_left(messages):
    had = bool(pictures(messages))
    while drop_oldest_images(messages):
        pass
    assert len(pictures(messages)) == had
