"""The source `datasets`: conversations of a data set of Hugging Face's `datasets`, which is a package to install.

A data set is a folder written by `save_to_disk`, or a name on the hub, `OWNER/NAME`; `OWNER/NAME:SPLIT` names a split other than `train`.
Its rows have the forms of the source `openai`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud.errors import UsageError
from hud.exchange import ForeignRun, RunSource
from hud.exchange.file_import import is_hub_name
from hud_integrations.sources.openai_logs import read_rows

_SPLIT = "train"
_MARKS = ("dataset_info.json", "dataset_dict.json")
"""Files of a folder written by `save_to_disk`."""


def is_data_set(path: Path) -> bool:
    """Return whether a path is a saved data set, or the name of one on the hub."""
    return any((path / mark).is_file() for mark in _MARKS) or is_hub_name(str(path))


def read_data_set(path: Path) -> Iterator[ForeignRun]:
    """Yield the conversations of a data set. Raises `UsageError` without the package, and for rows in another form."""
    yield from read_rows(_rows(path), str(path), ids=str(path))


def _rows(path: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise UsageError(
            f"Reading the data set {path} needs its package: pip install datasets."
        ) from None
    if path.exists():
        name, split, loaded = str(path), _SPLIT, datasets.load_from_disk(str(path))
    else:
        name, _, split = str(path).partition(":")
        split = split or _SPLIT
        try:
            loaded = datasets.load_dataset(name)
        # Its errors are of many packages, and each is a sentence.
        except Exception as error:
            raise UsageError(
                f"There is no file {name}, and the data set of this name cannot be loaded from the hub: {error}"
            ) from error
    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    if split not in loaded:
        raise UsageError(
            f"The data set {name} has no split {split!r}; it has {', '.join(loaded)}: name one as OWNER/NAME:SPLIT."
        )
    return loaded[split]


data_sets = RunSource(
    summary="data sets of Hugging Face `datasets`: folders of save_to_disk, and names on the hub",
    recognizes=is_data_set,
    read=read_data_set,
)
