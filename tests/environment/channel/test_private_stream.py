"""The stream between a process and the one that it forked carries frames of any size, and tells of its end."""

import asyncio
import socket
from asyncio import IncompleteReadError, LimitOverrunError

import pytest

from hud.environment.channel.private_stream import PrivateStream

LIMIT = 64 << 20


@pytest.fixture
async def ends():
    streams = [PrivateStream(end, LIMIT) for end in socket.socketpair()]
    yield streams
    for stream in streams:
        stream.close()


async def test_frames_of_all_sizes_arrive_whole_and_in_order(ends):
    ours, theirs = ends
    frames = [b"x" * size + b"\n" for size in (0, 1, 5 << 20, 70_000, 3)]

    async def send():
        for frame in frames:
            ours.write(frame)
            await ours.drain()

    sending = asyncio.create_task(send())
    async with asyncio.timeout(60):
        assert [await theirs.readuntil() for _ in frames] == frames
        await sending


async def test_both_directions_at_once(ends):
    async def talk(stream):
        stream.write(b"y" * (8 << 20) + b"\n")
        return len(await stream.readuntil())

    async with asyncio.timeout(60):
        assert await asyncio.gather(*map(talk, ends)) == [(8 << 20) + 1] * 2


async def test_a_writer_waits_while_much_is_unsent():
    near, far = socket.socketpair()
    ours = PrivateStream(near, LIMIT)
    ours.write(b"x" * (4 << 20) + b"\n")
    draining = asyncio.create_task(ours.drain())
    await asyncio.sleep(0.05)
    assert not draining.done()
    theirs = PrivateStream(far, LIMIT)
    async with asyncio.timeout(60):
        assert len(await theirs.readuntil()) == (4 << 20) + 1
        await draining
    ours.close()
    theirs.close()


async def test_the_peers_end_is_told_to_reader_and_writer(ends):
    ours, theirs = ends
    theirs.write(b"whole\ncut")
    theirs.close()
    assert await ours.readuntil() == b"whole\n"
    with pytest.raises(IncompleteReadError):
        await ours.readuntil()
    ours.write(b"anyone?\n")
    with pytest.raises(ConnectionResetError):
        await ours.drain()
    assert ours.is_closing()


async def test_a_line_over_the_limit_is_refused():
    near, far = socket.socketpair()
    ours, theirs = PrivateStream(near, 1000), PrivateStream(far, 1000)
    theirs.write(b"x" * 2000)
    with pytest.raises(LimitOverrunError):
        await ours.readuntil()
    ours.close()
    theirs.close()


async def test_a_reader_is_woken_when_its_own_side_is_closed(ends):
    ours, _ = ends
    reading = asyncio.create_task(ours.readuntil())
    await asyncio.sleep(0)
    ours.close()
    with pytest.raises(IncompleteReadError):
        await reading
    ours.write(b"nothing")
    ours.close()
