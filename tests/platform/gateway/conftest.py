"""A served platform with the model `tiny`, for all tests of a module."""

import pytest
from tests.platform.gateway.gateway_server import make_platform, serving


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"))
    yield app
    app.state.parts.close()


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as url:
        yield url
