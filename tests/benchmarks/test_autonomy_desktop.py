"""The desktop categories of `autonomy-10`: a text editor, graded on the file that is saved."""

from __future__ import annotations

import shutil

import pytest
from tests.benchmarks.played import NOTHING, rewards

from hud.benchmarks import benchmark
from hud.benchmarks.autonomy.applications.editor.document import grade_lines
from hud.benchmarks.autonomy.applications.editor.tasks import KINDS as EDITS
from hud.benchmarks.autonomy.applications.editor.tasks import edit

SEED = 1_000_000
_DESKTOP = ("Xvfb", "x11vnc", "openbox", "bwrap")


def on_a_desktop_with(program):
    return pytest.mark.skipif(
        any(shutil.which(name) is None for name in (*_DESKTOP, program)),
        reason=f"needs a desktop and {program} (scripts/setup-worlds)",
    )


async def check_script(slug):
    autonomy = benchmark("autonomy-10")
    tasks = autonomy.tasks().filter([slug])
    assert await rewards(tasks, autonomy.oracle()) == {slug: 1.0}
    assert await rewards(tasks, NOTHING) == {slug: 0.0}


@pytest.mark.parametrize("kind", EDITS)
def test_an_edit_is_drawn_from_its_seed_and_graded_by_its_lines(kind):
    asked, again, other = edit(kind, SEED), edit(kind, SEED), edit(kind, SEED + 1)
    assert asked == again
    assert asked.before != other.before
    for left, reward in ((asked.before, 0.0), (asked.wanted, 1.0), (asked.wanted.rstrip(), 1.0)):
        assert grade_lines(asked.before, asked.wanted, left).reward == reward
    for left in ("", asked.wanted + "More.\n", asked.wanted.replace("e", "E")):
        assert grade_lines(asked.before, asked.wanted, left).reward == 0.0


def test_lines_in_another_order_are_not_all_that_was_asked_for():
    graded = grade_lines("a\nb\nc\n", "c\nd\na\n", "a\nc\nd\n")
    assert graded.reward == 2 / 3


@on_a_desktop_with("mousepad")
@pytest.mark.slow
async def test_a_script_edits_a_document_in_mousepad():
    await check_script(f"editor-prices-{SEED}")
