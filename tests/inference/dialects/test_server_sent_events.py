"""Server-sent events in pieces of any size."""

import pytest

from hud.inference.dialects import server_sent_events
from hud.inference.dialects.server_sent_events import EventTooLargeError, data_of, events_in


async def read(body, size):
    async def pieces():
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return [data async for data in data_of(pieces())]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_pieces_of_any_size_are_the_same_events(size):
    body = b": note\n\ndata: a\ndata:b\r\n\r\nevent: x\ndata: c d\n\ndata: last"
    assert await read(body, size) == [b"a\nb", b"c d", b"last"]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_lines_end_as_the_specification_says(end, size):
    body = b"event: x\ndata: a\ndata: b\n\n: note\n\ndata: {}\n\n".replace(b"\n", end)
    assert await read(body, size) == [b"a\nb", b"{}"]
    assert events_in(body.replace(b" a", b" {").replace(b" b", b" }")) == [{}, {}]


@pytest.mark.parametrize("size", [1, 1000])
async def test_an_event_named_error_is_one_in_any_form(size):
    body = b'\xef\xbb\xbfdata: a\n\nevent: error\ndata: {"message": "down"}\n\nevent: error\ndata: down\n\n'
    own = b'event:error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\ndata: b\n\n'
    assert await read(body + own, size) == [
        b"a",
        b'{"error":{"message":"down"}}',
        b'{"error":"down"}',
        b'{"type": "error", "error": {"type": "overloaded_error"}}',
        b"b",
    ]


async def test_a_long_line_in_small_pieces_takes_linear_time():
    """Each piece copied all before it, in the event loop of all teams: this took hours."""
    text = b"x" * (4 << 20)
    assert await read(b"data: %b\n\n" % text, 16) == [text]


async def test_an_event_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(server_sent_events, "MOST_EVENT_BYTES", 1000)
    with pytest.raises(EventTooLargeError):
        await read(b"data: " + b"x" * 2000, 16)
