"""What was appended reaches the platform once it can, and is kept until then."""

import asyncio
import os
import threading

import pytest

import hud.client.shipping as shipping
from hud.client.shipping import Shipper
from hud.errors import PlatformError, StoreError
from hud.trace.recording.journal import decode_events, encode_event, orphaned_journals


class Platform:
    """A platform that takes journal lines, while it is `up`."""

    api_url = None

    def __init__(self, failure=None):
        self.failure = failure
        self.got = []
        self.gate = threading.Event()
        self.gate.set()

    async def ingest(self, lines):
        self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        self.got += [event.step for event in decode_events(lines)]
        return []


def line(number, size=2):
    return encode_event(b"S", "a", number, b"x" * size)


@pytest.fixture
def open_shipper(tmp_path):
    opened = []

    def start(platform):
        opened.append(Shipper(tmp_path, platform))
        return opened[-1]

    yield start
    for shipper in opened:
        shipper.close()


async def test_flush_returns_when_all_of_it_is_there(open_shipper):
    platform = Platform()
    shipper = open_shipper(platform)
    for number in range(100):
        shipper.append(line(number))
    await shipper.flush()
    assert platform.got == list(range(100))
    await shipper.flush()


async def test_a_cancelled_flush_does_not_stop_the_shipping(open_shipper):
    platform = Platform()
    shipper = open_shipper(platform)
    platform.gate.clear()
    shipper.append(line(1))
    flushing = asyncio.create_task(shipper.flush())
    await asyncio.sleep(0.05)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    platform.gate.set()
    shipper.append(line(2))
    await asyncio.wait_for(shipper.flush(), 5)
    assert platform.got == [1, 2]


async def test_a_flush_waits_only_for_what_was_there_before_it(open_shipper):
    platform = Platform()
    shipper = open_shipper(platform)
    stop = threading.Event()

    def go_on():
        number = 10
        while not stop.is_set():
            shipper.append(line(number, 1000))
            number += 1

    shipper.append(line(1))
    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        await asyncio.wait_for(shipper.flush(), 5)
    finally:
        stop.set()
        writer.join()
    assert platform.got[0] == 1


async def test_a_store_that_refuses_is_told_and_nothing_is_lost(open_shipper):
    platform = Platform(StoreError("The disk is full."))
    shipper = open_shipper(platform)
    shipper.append(line(1))
    with pytest.raises(StoreError, match=r"The disk is full\. What was recorded is kept in"):
        await shipper.flush()
    platform.failure = None
    await asyncio.wait_for(shipper.flush(), 5)
    assert platform.got == [1]


@pytest.mark.slow
async def test_a_platform_that_comes_back_in_time_is_waited_for(open_shipper):
    platform = Platform(PlatformError("It did not answer.", 503))
    shipper = open_shipper(platform)
    shipper.append(line(1))
    flushing = asyncio.create_task(shipper.flush())
    await asyncio.sleep(0.1)
    assert not flushing.done()
    platform.failure = None
    await asyncio.wait_for(flushing, 5)
    assert platform.got == [1]


async def test_patience_with_a_platform_that_is_gone_ends(open_shipper, monkeypatch):
    monkeypatch.setattr(shipping, "PATIENCE_SECONDS", 0.0)
    shipper = open_shipper(Platform(PlatformError("It did not answer.", 503)))
    shipper.append(line(1))
    with pytest.raises(StoreError, match="did not answer"):
        await asyncio.wait_for(shipper.flush(), 5)


async def test_an_unexpected_error_is_told_too(open_shipper):
    shipper = open_shipper(Platform(ZeroDivisionError("oops")))
    shipper.append(line(1))
    with pytest.raises(StoreError, match="ZeroDivisionError: oops"):
        await asyncio.wait_for(shipper.flush(), 5)


async def test_a_journal_that_is_never_quiet_is_rotated(open_shipper, monkeypatch, tmp_path):
    monkeypatch.setattr(shipping, "ROTATE_BYTES", 10_000)
    monkeypatch.setattr(shipping, "BATCH_BYTES", 4_000)
    platform = Platform()
    shipper = open_shipper(platform)
    for number in range(200):
        shipper.append(line(number, 500))
    await asyncio.wait_for(shipper.flush(), 10)
    assert platform.got == list(range(200))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.journal")) < 50_000


def test_closing_ships_what_is_left_and_leaves_no_file(tmp_path):
    platform = Platform()
    shipper = Shipper(tmp_path, platform)
    shipper.append(line(1))
    shipper.close()
    assert platform.got == [1]
    assert list(tmp_path.iterdir()) == []


def test_closing_without_a_platform_leaves_the_journal_to_the_next_process(tmp_path):
    shipper = Shipper(tmp_path, Platform(PlatformError("gone", 503)))
    shipper.append(line(1))
    shipper.close()
    assert list(orphaned_journals(tmp_path)) == [line(1)]


def test_a_server_gets_what_dead_processes_left_for_it(tmp_path):
    left = Shipper(tmp_path, Platform(PlatformError("gone", 503)))
    left.append(line(1))
    left.close()
    platform = Platform()
    platform.api_url = "http://somewhere"
    Shipper(tmp_path, platform).close()
    assert platform.got == [1]


def test_a_forked_child_leaves_its_parents_journal_alone(tmp_path, monkeypatch):
    import hud.client
    from hud.eval import Job

    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    job = asyncio.run(Job.start("before the fork"))
    child = os.fork()
    if child == 0:
        other = asyncio.run(Job.start("in the child"))
        asyncio.run(other.finish())
        hud.client.disconnect(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(job.finish())

    async def names():
        return {
            one["name"]: one["status"]
            for one in (await hud.client.connect().get("/v2/jobs"))["items"]
        }

    assert asyncio.run(names()) == {"before the fork": "completed", "in the child": "completed"}
    hud.client.disconnect(tmp_path)
