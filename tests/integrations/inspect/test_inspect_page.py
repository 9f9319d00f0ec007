"""docs/integrations/inspect.md runs as it is written."""

import pytest

pytest.importorskip("inspect_ai", reason="scripts/setup-integration inspect")

from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("inspect", tmp_path)
