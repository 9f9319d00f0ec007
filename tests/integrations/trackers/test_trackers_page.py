"""docs/integrations/trackers.md runs as it is written."""

import pytest

pytest.importorskip("wandb", reason="scripts/setup-integration trackers")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("trackers", tmp_path)
