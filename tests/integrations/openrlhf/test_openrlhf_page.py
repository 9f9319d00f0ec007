"""docs/integrations/openrlhf.md runs as it is written."""

import pytest

pytest.importorskip("openrlhf.utils.agent", reason="scripts/setup-integration openrlhf")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("openrlhf", tmp_path)
