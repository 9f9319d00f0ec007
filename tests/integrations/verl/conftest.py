"""verl's wheel installs a package named `tests`, which hides this folder's."""

from pathlib import Path

import tests

tests.__path__ = [str(Path(__file__).parents[2])]
