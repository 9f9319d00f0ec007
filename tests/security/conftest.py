"""Fixtures of the attacks."""

import pytest
from tests.security.server import AttackedServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with keys in this process, shared by the tests of a file."""
    made = AttackedServer(tmp_path_factory.mktemp("home"))
    yield made
    made.parts.close()
