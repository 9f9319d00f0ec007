"""What a desktop's client makes of servers that lie, stop in mid-sentence, or say nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import zlib

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hud.capabilities import Capability, RFBClient
from hud.capabilities.desktop import rfb
from hud.capabilities.desktop.framebuffer import answer_of
from hud.errors import EnvironmentFault, InfrastructureFault, RolloutError

LIMIT_SECONDS = 60.0
"""Far beyond what any of these takes; a client that hangs is told by it."""
VERSION = b"RFB 003.008\n"
NAME = b"desk"
EXAMPLES = hypothesis_settings(max_examples=60)


def greeting(width=4, height=3, name=NAME):
    """All that a server without a password says before the first picture."""
    return b"".join(
        [
            *(VERSION, b"\x01\x01", b"\0\0\0\0", struct.pack(">HH", width, height), bytes(16)),
            *(struct.pack(">I", len(name)), name),
        ]
    )


def rectangle(x, y, width, height, encoding=0, data=b""):
    return struct.pack(">HHHHi", x, y, width, height, encoding) + data


def update(*rectangles, count=None):
    count = len(rectangles) if count is None else count
    return struct.pack(">BxH", 0, count) + b"".join(rectangles)


WHOLE = update(rectangle(0, 0, 4, 3, 0, bytes(range(48))))


@contextlib.asynccontextmanager
async def server(*said, stays=False):
    """A server that says `said` whatever it hears, and then hangs up, or stays silent."""
    ended = asyncio.Event()

    async def serve(reader, writer):
        with contextlib.suppress(OSError):
            for words in said:
                writer.write(words)
                await writer.drain()
            if stays:
                await ended.wait()
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield Capability.rfb(url=f"rfb://127.0.0.1:{port}", password="secret")
    finally:
        ended.set()
        listening.close()


async def told(capability):
    """Connect and look, again and again; return the fault that ends it."""
    async with asyncio.timeout(LIMIT_SECONDS):
        try:
            client = await RFBClient.connect(capability)
        except RolloutError as fault:
            return fault
        try:
            while True:
                await client.screenshot()
        except RolloutError as fault:
            return fault
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("challenge", "answer"),
    [
        ("84076f040550eea9341967633b5f3855", "dd96d21781a70da49443279975404dd0"),
        ("6eff78767762ad104e52a2e15fda3a1a", "c448c3c4ba7218ebac29fd6623e85bac"),
    ],
)
def test_the_answer_to_a_challenge_is_the_one_that_servers_expect(challenge, answer):
    assert answer_of(bytes.fromhex(challenge), "pass1234").hex() == answer
    assert answer_of(bytes.fromhex(challenge), "pass12345").hex() == answer, "eight letters count"
    assert answer_of(bytes.fromhex(challenge), "pass1233").hex() != answer


async def test_what_servers_send_is_what_is_seen():
    red, blue = bytes([0, 0, 255, 9]), bytes([255, 0, 0, 9])
    said = (
        greeting(),
        update(
            rectangle(0, 0, 4, 3, 0, red * 12),
            rectangle(1, 1, 2, 1, 0, blue * 2),
            rectangle(2, 2, 2, 1, 1, struct.pack(">HH", 1, 1)),
        ),
    )
    async with server(*said, stays=True) as capability:
        client = await RFBClient.connect(capability)
        assert client.size == (4, 3)
        seen = decoded(await client.screenshot())
        assert await client.screenshot() is await client.screenshot(), "nothing changed"
        zoomed = decoded(await client.screenshot((1, 1, 3, 2)))
        await client.close()
    r, b = (255, 0, 0), (0, 0, 255)
    assert seen == [[r, r, r, r], [r, b, b, r], [r, r, b, b]]
    assert zoomed == [[b, b, b, b]] * 3


async def test_bells_clipboards_palettes_and_new_sizes_are_taken():
    palette = struct.pack(">BxHH", 1, 0, 2) + bytes(12)
    clipboard = b"\x03\0\0\0" + struct.pack(">I", 5) + b"hello"
    larger = update(rectangle(0, 0, 6, 2, -223), rectangle(0, 0, 6, 2, 0, bytes(48)))
    async with server(greeting(), b"\x02", palette, clipboard, larger, stays=True) as capability:
        client = await RFBClient.connect(capability)
        assert client.size == (6, 2)
        assert decoded(await client.screenshot()) == [[(0, 0, 0)] * 6] * 2
        await client.close()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "not RFB 3.8"),
        ([b"RFB 003.003\n"], "not RFB 3.8"),
        ([VERSION, b"\0", struct.pack(">I", 9), b"too many!"], "it refuses: too many!"),
        ([VERSION, b"\x02\x13\x10"], "wants more than a password"),
        (
            [VERSION, b"\x01\x02", bytes(16), b"\0\0\0\x01\0\0\0\x04oops"],
            "refuses the connection: oops",
        ),
        ([VERSION, b"\x01\x01\0\0\0\x01\xff\xff\xff\xff"], "a text of 4294967295 bytes"),
        ([greeting(name=b"")[:-4], b"\x7f\0\0\0"], "a text of 2130706432 bytes"),
        ([greeting(width=0)], "screen has 0 by 3 pixels"),
        ([greeting(width=16000, height=16000)], "screen has 16000 by 16000 pixels"),
        ([greeting(), b"\x4d"], "messages of kind 77"),
        ([greeting(), update(rectangle(1, 0, 4, 1))], "pixels outside the screen"),
        ([greeting(), update(rectangle(65535, 65535, 65535, 65535))], "outside the screen"),
        ([greeting(), update(rectangle(0, 0, 4, 2, 1, b"\0\0\0\x02"))], "outside the screen"),
        ([greeting(), update(rectangle(0, 0, 4, 3, 5))], "encoding 5, which was not asked for"),
        ([greeting(), update(rectangle(0, 0, 0, 0, -223))], "screen has 0 by 0 pixels"),
    ],
)
async def test_what_no_desktop_says_is_told(said, reason):
    async with server(*said) as capability:
        fault = await told(capability)
    assert isinstance(fault, EnvironmentFault)
    assert reason in str(fault)
    assert str(fault).count("secret") == 0


@pytest.mark.slow
@EXAMPLES
@given(st.integers(0, len(greeting() + WHOLE)))
@example(0)
@example(len(greeting() + WHOLE))
def test_one_that_hangs_up_in_mid_sentence_is_told(length):
    async def scenario():
        async with server((greeting() + WHOLE)[:length]) as capability:
            fault = await told(capability)
        assert isinstance(fault, EnvironmentFault | InfrastructureFault)
        assert "()" not in str(fault)

    asyncio.run(scenario())


@pytest.mark.slow
@EXAMPLES
@given(
    st.integers(0, len(greeting() + WHOLE)),
    st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from([b"\0", b"\x01", b"\xff\xff", WHOLE, update(count=65535), bytes(40)]),
            max_size=8,
        ).map(b"".join),
    ),
)
def test_garbage_after_any_beginning_ends_in_a_fault(length, garbage):
    async def scenario():
        async with server((greeting() + WHOLE)[:length], garbage) as capability:
            assert isinstance(await told(capability), EnvironmentFault | InfrastructureFault)

    asyncio.run(scenario())


@pytest.mark.slow
@EXAMPLES
@given(
    st.lists(
        st.tuples(
            *(st.integers(0, 6) for _ in range(4)),
            st.sampled_from([0, 0, 1, -223, 16]),
            st.binary(),
        ),
        max_size=5,
    )
)
def test_any_rectangles_are_drawn_or_refused(rectangles):
    async def scenario():
        said = update(*(rectangle(*each) for each in rectangles))
        async with server(greeting(), WHOLE, said) as capability:
            assert isinstance(await told(capability), EnvironmentFault)

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [0, 5, 12, 13, 16, 20, 40, len(greeting()), -1])
async def test_one_that_falls_silent_is_not_waited_for_for_ever(length, monkeypatch):
    monkeypatch.setattr(rfb, "_CONNECT_SECONDS", 0.2)
    async with server((greeting() + WHOLE)[:length], stays=True) as capability:
        async with asyncio.timeout(LIMIT_SECONDS):
            with pytest.raises(InfrastructureFault, match=r"within 0\.2 s"):
                await RFBClient.connect(capability)


@pytest.mark.slow
async def test_one_that_takes_nothing_in_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(rfb, "_SEND_SECONDS", 0.2)

    done = asyncio.Event()

    async def deaf(reader, writer):
        writer.transport.pause_reading()
        writer.write(greeting() + WHOLE)
        await done.wait()
        writer.transport.abort()

    narrow = socket.create_server(("127.0.0.1", 0))
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listening = await asyncio.start_server(deaf, sock=narrow)
    port = narrow.getsockname()[1]
    client = await RFBClient.connect(Capability.rfb(url=f"rfb://127.0.0.1:{port}"))
    async with asyncio.timeout(LIMIT_SECONDS):
        with pytest.raises(EnvironmentFault, match="takes nothing in"):
            while True:
                await client.type_text("all work and no play " * 100)
        await client.close()
    done.set()
    listening.close()


@pytest.mark.parametrize(
    "url", ["rfb://127.0.0.1:display", "rfb://:5900", "rfb://[::1", "rfb://h:99999"]
)
async def test_an_address_that_is_none_is_told(url):
    with pytest.raises(EnvironmentFault, match="no address"):
        await RFBClient.connect(Capability.rfb(url=url))


async def test_nobody_at_an_address_is_told():
    async with server() as capability:
        pass
    with pytest.raises(InfrastructureFault, match="No desktop answers"):
        await RFBClient.connect(capability)


def decoded(png):
    """The rows of pixels of a PNG file whose rows are kept as differences to the ones above."""
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT") + 4
    length = int.from_bytes(png[start - 8 : start - 4])
    raw = zlib.decompress(png[start : start + length])
    above, rows = bytes(3 * width), []
    for number in range(height):
        row = raw[number * (3 * width + 1) :][: 3 * width + 1]
        assert row[0] == 2
        above = bytes((a + b) % 256 for a, b in zip(above, row[1:], strict=True))
        rows.append([tuple(above[at : at + 3]) for at in range(0, 3 * width, 3)])
    return rows
