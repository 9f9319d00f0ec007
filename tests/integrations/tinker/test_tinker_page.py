"""docs/integrations/tinker.md runs as it is written."""

import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

from tests.docs.stage import Scene
from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    scene = Scene(
        stands={"http://localhost:8000": "$UP_URL", "HUD_API_KEY=hud_...": "HUD_API_KEY=$UP_KEY"}
    )
    await run_page("tinker", tmp_path, scene)
