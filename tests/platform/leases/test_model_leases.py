"""One process trains a model at a time; whoever else tries is told who, and the dead hold nothing."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from hud.errors import ConflictError
from hud_platform.models.model_lease import Leases
from hud_platform.store import Store

HOLD = textwrap.dedent(
    """
    import time
    from hud import settings
    from hud_platform.models.model_lease import Leases
    from hud_platform.store import Store

    now = settings.load()
    Leases(Store.open(now.home, now.database_url)).acquire("m" * 32, "policy")
    print("held", flush=True)
    time.sleep(60)
    """
)
MODEL = "m" * 32


@pytest.fixture
def leases(tmp_path):
    store = Store.open(tmp_path)
    yield Leases(store)
    store.close()


@pytest.fixture
def other_process(tmp_path, leases):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "HUD_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip() == "held"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_process_is_told_who_holds_the_model(leases, other_process):
    with pytest.raises(ConflictError) as told:
        leases.acquire(MODEL, "policy")
    message = str(told.value)
    assert f"process {other_process.pid} on " in message
    assert "since 20" in message
    assert "hud models fork policy" in message
    with pytest.raises(ConflictError, match="cannot be removed now"):
        leases.refuse_if_held(MODEL, "policy", "removed")


def test_the_lease_of_a_killed_process_is_taken_over(leases, other_process):
    other_process.kill()
    other_process.wait()
    assert leases.holder(MODEL) is None
    leases.acquire(MODEL, "policy")
    assert leases.holder(MODEL).is_this_process


def test_a_process_renews_its_own_lease_and_gives_it_back(leases):
    leases.acquire(MODEL, "policy")
    first = leases.holder(MODEL)
    leases.acquire(MODEL, "policy")
    assert leases.holder(MODEL).acquired_at == first.acquired_at
    assert leases.holder(MODEL).expires_at >= first.expires_at
    leases.release(MODEL)
    assert leases.holder(MODEL) is None


def test_nobody_can_give_back_the_lease_of_another(leases, other_process):
    leases.release(MODEL)
    assert leases.holder(MODEL).pid == other_process.pid


def test_threads_of_one_process_share_its_lease(leases):
    problems = []

    def take():
        try:
            leases.acquire(MODEL, "policy")
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
