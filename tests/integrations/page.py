"""Runs a page of docs/integrations in the environment of its package."""

import sys
from contextlib import chdir
from pathlib import Path

from tests.docs.blocks import INTEGRATIONS, blocks_of, name_of
from tests.docs.stage import Scene, Stage


async def run_page(name, tmp_path, scene=None, **variables):
    """Run every block of a page, in order, as it is written."""
    page = INTEGRATIONS / f"{name}.md"
    variables |= {"HUD_HOME": str(tmp_path / "home"), "TRL_EXPERIMENTAL_SILENCE": "1"}
    stage = Stage(tmp_path, scene or Scene(), Path(sys.prefix) / "bin" / "hud", variables)
    try:
        with chdir(stage.here):
            await stage.begin(name_of(page))
            for block in blocks_of(page.read_text(), name_of(page)):
                await stage.run(block)
            await stage.check(name_of(page))
    finally:
        stage.closing.close()
