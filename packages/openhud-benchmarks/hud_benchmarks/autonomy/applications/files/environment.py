"""Environment `autonomy-files`: a workspace with several folders that each want something done."""

from __future__ import annotations

import secrets
import tarfile
from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud.graders import EvaluationResult
from hud_benchmarks.autonomy.applications.files.tasks import chores
from hud_benchmarks.autonomy.applications.files.tree import Tree
from hud_benchmarks.autonomy.grading import grade_state

INSTRUCTION = (
    "There are three folders in /workspace; do what is asked for in each. Paths are relative to it. Change nothing else, "
    "and leave no other files there; /tmp is free for what you need meanwhile."
)
_PACK = "/bin/tar --create --hard-dereference --file {} ."
_UNPACK = (
    "/bin/tar --extract --preserve-permissions --file /tmp/begin.tar && /bin/rm /tmp/begin.tar"
)

env = Environment("autonomy-files")
shell = env.workspace()


@env.template()
async def folders(kind: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Put three folders of files in order."""
    before, wanted, requests = Tree(), Tree(), []
    for name, chore in chores(kind, seed).items():
        before.update(chore.before.below(name))
        wanted.update(chore.wanted.below(name))
        requests.append(f"## {name}\n\n{chore.request}")
    await shell.write("/tmp/begin.tar", before.packed())
    await shell.bash(_UNPACK)
    yield "\n\n".join([INSTRUCTION, *requests])
    try:
        left = await _left()
    except tarfile.TarError:
        yield EvaluationResult(reward=0.0, content="What is left cannot be read.")
        return
    yield grade_state(
        before.states(wanted), wanted.states(wanted), left.states(wanted), part=_chore
    )


async def _left() -> Tree:
    """Return the folders that are left; raises `tarfile.TarError` where they cannot be packed, or read."""
    # A name that the agent could not know: an archive of its own would be graded where this one cannot be written.
    archive = f"/tmp/{secrets.token_hex(16)}.tar"
    packed = await shell.bash(_PACK.format(archive))
    if packed.exit_code != 0:
        raise tarfile.TarError(packed.stderr)
    return Tree.unpacked(await shell.read(archive))


def _chore(path: str) -> str:
    """Return the folder of a path: a chore counts when it is done completely."""
    return path.split("/")[0]
