"""docs/integrations/datasets.md runs as it is written."""

import pytest

pytest.importorskip("datasets", reason="scripts/setup-integration datasets")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("datasets", tmp_path)
