"""Addresses of capabilities: what an environment may leave out of a URL."""

import pytest

from hud.capabilities import Capability
from hud.errors import EnvironmentFault


@pytest.mark.parametrize(
    ("protocol", "url", "address"),
    [
        ("rfb/3.8", "rfb://10.0.0.1:5901", ("10.0.0.1", 5901)),
        ("rfb/3.8", "rfb://desktop", ("desktop", 5900)),
        ("rfb/3.8", "desktop:5901", ("desktop", 5901)),
        ("ssh/2", "ssh://shell", ("shell", 22)),
        ("ssh/2", "shell:2222", ("shell", 2222)),
        ("cdp/1.3", "http://browser", ("browser", 80)),
    ],
)
def test_a_port_that_is_left_out_is_the_scheme_s(protocol, url, address):
    assert Capability("it", protocol, url, {}).address == address


@pytest.mark.parametrize(
    "url", ["", "http://", "rfb://[", "rfb://host:port", "host", "tcp://host", "ssh:"]
)
def test_an_address_without_a_host_or_with_a_wrong_port_is_named(url):
    with pytest.raises(EnvironmentFault, match="no address"):
        _ = Capability("it", "rfb/3.8", url, {}).address
