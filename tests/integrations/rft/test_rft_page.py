"""docs/integrations/rft.md runs as it is written."""

import pytest

pytest.importorskip("openai", reason="scripts/setup-integration rft")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("rft", tmp_path)
