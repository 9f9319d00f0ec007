"""docs/integrations/verifiers.md runs as it is written."""

import sys

import pytest

pytest.importorskip("verifiers.v1", reason="scripts/setup-integration verifiers")

from tests.docs.stage import Scene
from tests.integrations.page import run_page


async def test_every_block_of_the_page_runs(tmp_path):
    await run_page("verifiers", tmp_path, Scene(stands={"verifiers/bin/python": sys.executable}))
