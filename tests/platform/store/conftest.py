"""These tests are about the store: each migrates its own."""

import pytest
from tests.conftest import DATABASE

from hud_platform.store import Store


@pytest.fixture(autouse=True)
def migrations(request, monkeypatch):
    if DATABASE is None:
        monkeypatch.setattr(Store, "open", request.getfixturevalue("migrating_open"))
