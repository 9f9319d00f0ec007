"""docs/integrations/trl.md runs as it is written."""

import pytest

pytest.importorskip("trl", reason="scripts/setup-integration trl")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("trl", tmp_path)
