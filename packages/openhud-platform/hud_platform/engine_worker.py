"""Worker process of an engine: `python -m hud_platform.engine_worker FD`, started by a server.

FD is its end of a socket to the server (`hud_platform.serving.worker`). The process ends when the server does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from hud.engine import cpu_threads
from hud.errors import HudError
from hud_platform.access.page_paths import PagePaths
from hud_platform.models.model_lease import work_for
from hud_platform.parts import Parts
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.frames import pack, read_frame
from hud_platform.serving.inline import InlineEngine
from hud_platform.serving.worker import Worker

WRITE_BUFFER = 256 << 10
"""Bytes in the write buffer above which the next frame of tokens is delayed."""


async def work(connection: socket.socket) -> None:
    """Serve the server at the other end of a socket."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
    writer.transport.set_write_buffer_limits(high=WRITE_BUFFER)
    frame = await read_frame(reader)
    if frame is None:
        return
    (_, home, database, storage, threads), _ = frame
    cpu_threads.limit(
        sampling=threads
    )  # The other cores are for the server, which asks for the tokens.
    config = PlatformConfig(Path(home), database, storage)
    parts = await asyncio.to_thread(Parts, config, {}, PagePaths())
    worker = Worker(InlineEngine(parts.policies, parts.sessions), writer)
    writer.write(pack(["ready"]))
    await worker.serve(reader)
    with suppress(ConnectionError):
        await writer.drain()
    writer.close()
    await writer.wait_closed()


def main() -> None:
    """Run the engine for the parent process."""
    # Ctrl-C is handled by the server, which sends `stop`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    sys.argv = ["hud-engine"]
    # On the server's error output, where its operator reads what models take.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("hud").setLevel(logging.INFO)
    work_for(os.getppid())
    import hud_platform.models.loaded_policies
    import hud_platform.training.open_sessions  # noqa: F401 (loads torch now, not when the first request waits for it)

    # A full collection would hold up decode steps for 0.1 s to look at the modules again.
    gc.freeze()
    with suppress(ConnectionError):
        try:
            asyncio.run(work(connection))
        except HudError as error:  # Of a store that cannot be opened, for example.
            logging.getLogger("hud.platform").error("The engine cannot run: %s", error)
            os._exit(1)
    # The server has disconnected: running passes are abandoned. Checkpoints are written atomically.
    os._exit(0)


if __name__ == "__main__":
    main()
