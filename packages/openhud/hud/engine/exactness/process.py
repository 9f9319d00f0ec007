"""Process that checks the class of one folder's model: python -m hud.engine.exactness.process FOLDER BYTES SECONDS

Prints the verdict as one line of JSON. A configuration is a stranger's: its sizes may claim anything. The limits of this process
end what would take a machine's memory, or hours.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from resource import RLIMIT_CORE, RLIMIT_CPU, RLIMIT_DATA, setrlimit


def main(folder: str, memory: int, seconds: int) -> None:
    """Check within limits of memory, in bytes, and processor time; print the verdict."""
    setrlimit(RLIMIT_CORE, (0, 0))
    setrlimit(RLIMIT_DATA, (memory, memory))  # Not RLIMIT_AS: torch maps its libraries.
    setrlimit(RLIMIT_CPU, (seconds, seconds))
    from hud.engine.exactness.check import check_folder

    sys.stdout.write(json.dumps(asdict(check_folder(Path(folder)))) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
