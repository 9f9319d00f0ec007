"""The wheel installs a package named `tests`, which hides this repository's."""

from pathlib import Path

import tests

FOLDER = str(Path(__file__).parents[2])
if FOLDER not in tests.__path__:
    tests.__path__ = [FOLDER]
