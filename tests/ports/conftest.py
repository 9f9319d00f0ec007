"""Fixtures of the ports' tests."""

import pytest
from tests.strangers import installer


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A function that installs a distribution with one entry point, from a folder outside of the repository."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return installer(folder, monkeypatch)
