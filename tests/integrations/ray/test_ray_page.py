"""docs/integrations/ray.md runs as it is written."""

import pytest

pytest.importorskip("ray", reason="scripts/setup-integration ray")

from tests.docs.stage import TASKS, Scene
from tests.integrations.page import run_page
from tests.integrations.ray.ray_cluster import RayCluster


async def test_every_block_of_the_page_runs(tmp_path):
    scene = Scene(
        files={"rooms/env.py": TASKS % (["red", "green"],)},
        setup='hud up\nexport HUD_API_URL="$UP_URL" HUD_API_KEY="$UP_KEY"\n'
        "hud models create mine --tasks rooms/env.py --hidden 32 --layers 1\n",
        stands={
            "http://localhost:8000": "$UP_URL",
            "/var/cache/hud": "$STAGE/cache",
            "/srv/hud": "$STAGE",
        },
    )
    with RayCluster() as cluster:
        cluster.add()
        await run_page("ray", tmp_path, scene, RAY_ADDRESS=cluster.address)
