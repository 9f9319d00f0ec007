"""Ids are unique, in forked processes too."""

from __future__ import annotations

import os

from hud.trace import new_id
from hud.trace.ids import is_id


def test_ids_are_uuids_and_differ():
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(map(is_id, ids))


def test_a_forked_child_draws_other_ids_than_its_parent():
    new_id()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, " ".join(new_id() for _ in range(100)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="ascii") as pipe:
        theirs = pipe.read().split()
    os.waitpid(child, 0)
    assert len(theirs) == 100
    assert not set(theirs) & {new_id() for _ in range(1000)}
