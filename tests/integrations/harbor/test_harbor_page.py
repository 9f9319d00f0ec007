"""docs/integrations/harbor.md runs as it is written."""

import pytest

pytest.importorskip("asyncssh", reason="pip install 'openhud[environments]'")

from tests.integrations.page import run_page


@pytest.mark.slow
async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("harbor", tmp_path)
