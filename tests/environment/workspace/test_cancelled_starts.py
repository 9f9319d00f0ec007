"""A workspace whose start is cancelled, at whatever moment, ends and leaves no process."""

import asyncio
import shutil

import psutil
import pytest

from hud.environment.workspace.workspace import OpenWorkspace, Workspace
from hud.trace import new_id

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)


@pytest.mark.slow
async def test_a_cancelled_start_ends_and_leaves_no_process():
    folder = f"/{new_id()}"
    workspace = Workspace(name="cancelled", guest_path=folder)
    for number in range(100):
        starting = asyncio.ensure_future(OpenWorkspace.start(workspace))
        await asyncio.sleep(number * 0.0002)
        starting.cancel()
        done, _ = await asyncio.wait([starting], timeout=60)
        assert done, f"A start that was cancelled after {number * 0.2:g} ms never ends."
        if not starting.cancelled():
            await starting.result().close()
    left = [one.pid for one in psutil.process_iter(["cmdline"]) if _names(one, folder)]
    assert left == []


def _names(process, folder):
    return any(folder in word for word in process.info["cmdline"] or ())
