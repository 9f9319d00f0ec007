"""docs/integrations/gymnasium.md runs as it is written."""

import pytest

pytest.importorskip("gymnasium", reason="scripts/setup-integration gymnasium")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("gymnasium", tmp_path)
