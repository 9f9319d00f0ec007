"""Process that checks the class of one folder's model, and prints the verdict as one line of JSON.

A configuration is a stranger's: its sizes may claim anything. The limits of this process end what would take a machine's memory,
or hours.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from hud.processes.limited import enter_limits


def main() -> None:
    """Check the folder that the parent names."""
    (folder,) = enter_limits()
    from hud.engine.exactness.check import check_folder  # Imports torch, within the limits.

    sys.stdout.write(json.dumps(asdict(check_folder(Path(folder)))) + "\n")


if __name__ == "__main__":
    main()
