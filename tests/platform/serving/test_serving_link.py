"""The connection to an engine that has died, before its supervisor has closed it."""

import asyncio
import socket
from datetime import UTC, datetime

import pytest

from hud.trace import SamplingParams
from hud_platform.models.records import ModelRecord
from hud_platform.serving.link import Link
from hud_platform.serving.token_engine import EngineDownError, TokenRequest


async def test_a_request_over_a_broken_connection_says_that_the_engine_is_down(tmp_path):
    ours, theirs = socket.socketpair()
    link = Link(*await asyncio.open_unix_connection(sock=ours))
    model = ModelRecord("a" * 32, "b" * 32, "m", "m", tmp_path, "tiny", datetime.now(UTC))
    request = TokenRequest([1, 2], SamplingParams(), frozenset())
    with link.stream(model, None, request):
        link._writer.transport.abort()
        theirs.close()
    link.pulse()
    with pytest.raises(EngineDownError), link.stream(model, None, request):
        pass
    with pytest.raises(EngineDownError):
        await link.call("status")
    link.close("The test has ended.")
