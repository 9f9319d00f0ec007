"""Parquet files and data sets of `datasets`, as released, are what `hud train --from` learns from: `scripts/setup-integration datasets`."""

from pathlib import Path

import pytest

pytest.importorskip("datasets", reason="scripts/setup-integration datasets")

import datasets

from hud.errors import UsageError
from hud.exchange.file_import import source_of

CONVERSATIONS = [
    {
        "messages": [
            {"role": "user", "content": f"say {word}"},
            {"role": "assistant", "content": word},
        ]
    }
    for word in ("red", "blue")
]


def answers(path, kind):
    name, source = source_of(path)
    assert name == kind
    return [run.content for run in source.read(path)]


def test_parquet_files_are_read_as_rows(tmp_path):
    path = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(CONVERSATIONS).to_parquet(path)
    assert answers(path, "openai") == ["red", "blue"]
    path.write_bytes(b"nothing")
    with pytest.raises(UsageError, match=r"rows\.parquet is no Parquet file"):
        source_of(path)


def test_saved_data_sets_are_read_and_their_splits_named(tmp_path):
    rows = datasets.Dataset.from_list(CONVERSATIONS)
    rows.save_to_disk(tmp_path / "one")
    assert answers(tmp_path / "one", "datasets") == ["red", "blue"]
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "two")
    assert answers(tmp_path / "two", "datasets") == ["red", "blue"]
    datasets.DatasetDict({"sft": rows}).save_to_disk(tmp_path / "three")
    with pytest.raises(UsageError, match="no split 'train'; it has sft"):
        answers(tmp_path / "three", "datasets")


def test_a_name_on_the_hub_is_loaded_with_its_split(monkeypatch):
    """No network: what the hub would return is given in its place."""
    rows = datasets.Dataset.from_list(CONVERSATIONS)
    loaded = datasets.DatasetDict({"train": rows, "test": rows.select([0])})
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda name: (asked.append(name), loaded)[1])
    assert answers(Path("owner/chats-v1.5"), "datasets") == ["red", "blue"]
    assert answers(Path("owner/chats-v1.5:test"), "datasets") == ["red"]
    assert asked == ["owner/chats-v1.5"] * 2

    def missing(name):
        raise FileNotFoundError(f"{name} does not exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", missing)
    with pytest.raises(UsageError, match="no file owner/nothing, and the data set of this name"):
        answers(Path("owner/nothing"), "datasets")
