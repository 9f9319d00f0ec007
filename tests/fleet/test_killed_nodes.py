"""Rollouts go on from their snapshots on other nodes, however often a node is killed."""

from __future__ import annotations

import shutil

import pytest
from tests.chaos.killed_nodes import series

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
    ),
]


def test_every_rollout_ends_once_from_its_snapshots(tmp_path):
    outcome = series(
        tmp_path, rollouts=3, interval=4, steps=6, step_seconds=1, nodes=1, patient=True
    )
    assert (outcome.ended_once, outcome.errors) == (3, [])
    assert outcome.kills > 0
    assert outcome.resumed > 0
