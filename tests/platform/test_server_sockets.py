"""Connections to the server answer at once."""

import socket

from hud_platform.server import listen


def test_accepted_connections_hold_nothing_back():
    with (
        listen("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
