"""The server that the tests of a module share."""

import pytest
from tests.integrations.tinker.server import started


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = started(tmp_path_factory.mktemp("tinker") / "home")
    yield made
    assert made.stop() == 0
