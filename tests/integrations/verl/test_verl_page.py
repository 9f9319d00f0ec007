"""docs/integrations/verl.md runs as it is written."""

import pytest

pytest.importorskip("verl", reason="scripts/setup-integration verl")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("verl", tmp_path)
