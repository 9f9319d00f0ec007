"""`ScratchFolder`: the files of this machine that a workspace's container mounts: OpenHUD's scripts, and files of names."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.mounts import INSIDE, made_up_files
from hud.environment.workspace.sandbox.scripts import script_files
from hud.environment.workspace.sandbox.seccomp import filter_program

FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
"""Files that engines fill with the machine's addresses and names."""
_PREFIX = "hud-container-"
_SWEPT_SECONDS = 600.0
"""Age from which a folder whose process has ended is removed."""


class ScratchFolder:
    """A new folder, closed to other users, and locked by this process."""

    def __init__(self, plan: Plan) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.inside = self.path / "inside"
        """Folder that is mounted at `/run/hud`."""
        for path, text in made_up_files(plan.hosts).items():
            if path in FILES:
                (self.path / path.rpartition("/")[2]).write_text(text)
        for name in ("", "machine", "python", "guard"):
            (self.inside / name).mkdir()
            (self.inside / name).chmod(0o755)  # The container's user may be another one.
        for path, content in {**script_files(), f"{INSIDE}/filter": filter_program()}.items():
            target = self.inside / Path(path).relative_to(INSIDE)
            target.write_bytes(content)
            target.chmod(0o444)

    def remove(self) -> None:
        """Delete it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep() -> None:
    """Delete folders of this user whose processes were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _SWEPT_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
