"""A wall clock that is set takes no lease from its worker, keeps none for the dead, and ends no pass."""

import subprocess
import sys
import textwrap
import time

import pytest
from tests.chaos.wall_clock import COMPILER, WallClock
from tests.conftest import DATABASE, schema_url

from hud.trace import new_id
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store

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
