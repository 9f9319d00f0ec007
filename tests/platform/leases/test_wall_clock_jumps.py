"""A wall clock that is set takes no lease from its worker, keeps none for the dead, and ends no pass."""

import subprocess
import sys
import textwrap
import time
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa
from tests.chaos.wall_clock import COMPILER, WallClock
from tests.conftest import DATABASE, schema_url

from hud.errors import PlatformError
from hud.trace import new_id
from hud_platform.access import device_login, web_sessions
from hud_platform.access.device_login import DeviceLogins
from hud_platform.access.identity import Identity
from hud_platform.access.run_grant import RunGrant
from hud_platform.application import create_app
from hud_platform.gateway.run_passes import call_store
from hud_platform.process.config import PlatformConfig
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store, tables
from hud_platform.store.clock import steady_time
from hud_platform.store.tables import LOCAL_TEAM

TEAM = "a" * 32
SPEC = {"env": "echo", "task": "say", "slug": "say", "agent": {"type": "openai", "config": {}}}
HOUR = 3600
STEPS = textwrap.dedent(
    """
    import sys
    import time
    from pathlib import Path
    from hud_platform.access.identity import Identity
    from hud_platform.access.passes import Passes
    from hud_platform.rollouts.rollout_queue import Rollouts
    from hud_platform.store import Store
    from hud.trace import new_id

    home, url = Path(sys.argv[1]), sys.argv[2] or None
    store = Store.open(home, url)
    rollouts, passes = Rollouts(store), Passes(home)
    rollouts.submit("a" * 32, None, new_id(), None, {"env": "echo", "task": "say"})
    (held,) = rollouts.take("one")
    given = passes.make(Identity(team_id="a" * 32, scopes=frozenset()), 600.0)

    def ask():
        print(time.time(), flush=True)
        return sys.stdin.readline()

    before = time.time()
    ask()
    assert abs(time.time() - before) > 3000, "The clock was not set."
    assert rollouts.take("two") == [], "A living worker lost its lease."
    assert passes.read(given) is not None, "A pass ended early."
    rollouts.lease_seconds = 0.05
    assert rollouts.renew("one", [held.trace_id]) == ([], [])
    ask()
    time.sleep(0.1)
    assert [one.trace_id for one in rollouts.take("two")] == [held.trace_id], "The dead hold a lease."
    """
)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(("first", "then"), [(HOUR, -HOUR), (-HOUR, HOUR)])
def test_leases_and_passes_do_not_follow_the_wall_clock(tmp_path, first, then):
    clock, home = WallClock(tmp_path, "server"), tmp_path / "home"
    url = "" if DATABASE is None else schema_url(home)
    with subprocess.Popen(
        [sys.executable, "-c", STEPS, str(home), url],
        env=clock.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for seconds in (first, then):
            process.stdout.readline()
            clock.set(seconds)
            process.stdin.write("go\n")
            process.stdin.flush()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_leases_of_another_date_begin_again_when_a_server_starts(tmp_path):
    store = Store.open(tmp_path, None)
    rollouts = Rollouts(store)
    rollouts.submit(TEAM, None, new_id(), None, SPEC)
    rollouts.lease_seconds = 86_400.0
    (held,) = rollouts.take("another machine's")
    rollouts.lease_seconds = 0.05
    rollouts.begin_again()
    time.sleep(0.1)
    assert [one.trace_id for one in rollouts.take("two")] == [held.trace_id]
    rollouts.lease_seconds = -86_400.0
    rollouts.renew("two", [held.trace_id])
    rollouts.lease_seconds = 30.0
    rollouts.begin_again()
    assert rollouts.take("three") == []
    store.close()


@pytest.fixture
def parts(tmp_path):
    parts = create_app(PlatformConfig(tmp_path, keys=True)).state.parts
    yield parts
    parts.close()


@pytest.fixture
def set_clock(monkeypatch):
    wall = time.time

    def set_to(seconds):
        class Jumped(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(seconds=seconds)

        monkeypatch.setattr(time, "time", lambda: wall() + seconds)
        for module in (call_store, device_login, web_sessions):
            monkeypatch.setattr(module, "datetime", Jumped, raising=False)

    return set_to


def test_a_jump_of_a_day_ends_no_run_of_a_program(parts, set_clock):
    """Its calls were recorded as those of a process that had died, and the next one was refused."""
    store, grant = parts.gateway.runs.store, RunGrant(new_id(), new_id(), "m")
    store.open(grant, LOCAL_TEAM, None, 3600.0)
    store.begin(grant, "a")
    set_clock(24 * HOUR)
    store.clean()
    assert store.begin(grant, "b") == 2
    assert len(parts.store.rows(sa.select(tables.run_calls))) == 2


@pytest.mark.parametrize("seconds", [24 * HOUR, -HOUR])
def test_a_jump_moves_the_end_of_no_url(parts, set_clock, seconds):
    who = Identity(LOCAL_TEAM, frozenset())
    valid = parts.links.make("upload", "a", who, steady_time() + 60.0)
    over = parts.links.make("upload", "a", who, steady_time() - 1.0)
    set_clock(seconds)
    assert parts.links.subject("upload", valid) == "a"
    with pytest.raises(PlatformError, match="expired"):
        parts.links.subject("upload", over)


@pytest.mark.parametrize("seconds", [24 * HOUR, -HOUR])
def test_a_login_goes_on_over_a_jump(parts, set_clock, monkeypatch, seconds):
    monkeypatch.setattr(device_login, "INTERVAL_SECONDS", 0)
    logins = DeviceLogins(parts.store, parts.keys)
    begun = logins.begin("laptop")
    assert logins.collect(begun.device_code) == "authorization_pending"
    set_clock(seconds)
    assert logins.collect(begun.device_code) == "authorization_pending"
    key = parts.keys.mint("me", LOCAL_TEAM)[0]
    logins.decide(begun.user_code, key, allow=True)
    assert not isinstance(logins.collect(begun.device_code), str)


def test_a_session_of_a_browser_goes_on_over_a_jump(parts, set_clock):
    session = parts.web_sessions.begin(parts.keys.mint("me", LOCAL_TEAM)[0])
    set_clock(20 * 24 * HOUR)
    assert parts.web_sessions.find(session) is not None
