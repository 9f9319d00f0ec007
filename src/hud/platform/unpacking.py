"""Archives from strangers, unpacked so that nothing lands outside its folder and nothing fills the disk."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from hud.errors import UsageError

MOST_FILES = 20_000
MOST_BYTES = 2 << 30


def unpack(
    archive: Path, folder: Path, *, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES
) -> int:
    """Unpack a gzip-compressed tar into a new folder; returns how many files it held.

    Raises `UsageError`, and leaves no folder, for members outside of it, links out of it, devices and pipes, and
    for more files or bytes than allowed, whatever the archive says of itself.
    """
    folder.mkdir(parents=True)
    try:
        return _unpack(archive, folder, most_files, most_bytes)
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"The archive cannot be unpacked: {error}.") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _unpack(archive: Path, folder: Path, most_files: int, most_bytes: int) -> int:
    files, size = 0, 0
    seen: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(archive, mode="r:gz") as tar:
        for member in tar:
            files += 1
            if member.isreg():
                seen[member.name] = member
            elif member.islnk() and member.linkname in seen:
                # A second name of a file in the archive: a copy of it, so that nothing is linked to.
                member = seen[member.linkname].replace(name=member.name, deep=False)
            size += max(member.size, 0)
            if files > most_files:
                raise UsageError(f"The archive holds more than {most_files:,} files.")
            if size > most_bytes:
                raise UsageError(f"The archive holds more than {most_bytes >> 20:,} MiB.")
            if not (member.isfile() or member.isdir() or member.issym()):
                raise UsageError(
                    f"The archive holds {member.name!r}, which is neither file, folder nor symbolic link."
                )
            # Refuses absolute names, names and links that leave the folder, and odd permissions.
            tar.extract(member, folder, filter="data")
    return files
