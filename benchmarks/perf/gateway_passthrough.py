"""Requests a second that the gateway passes through to a provider: one server process on one core, with keys.

The stand-in provider and the load generator are processes of their own, kept off that core where there is another; both
write fixed bytes to kept-alive sockets, so that what is measured is the gateway. Beside it stands the provider asked
directly by the same generator. LiteLLM's proxy, on two cores of this kind, passes 90 to 118 requests a second through.

    python benchmarks/perf/gateway_passthrough.py [--seconds 8] [--connections 32]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from records import report
from sizes import size

BAR = 600.0
LITELLM = (90.0, 118.0)
KEY = "sk-stand-in"
BODY = json.dumps(
    {"model": "standin", "messages": [{"role": "user", "content": "Say one short word, please."}]}
).encode()
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "standin",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13},
    }
).encode()


class StandIn(asyncio.Protocol):
    """Answers every request at once with the same bytes."""

    told = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(ANSWER),
        ANSWER,
    )

    def connection_made(self, transport):
        self.transport, self.data = transport, b""

    def data_received(self, data):
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            at = self.data.lower().find(b"content-length:")
            length = int(self.data[at + 15 : self.data.find(b"\r\n", at)])
            if len(self.data) < end + 4 + length:
                return
            self.data = self.data[end + 4 + length :]
            self.transport.write(self.told)


async def stand_in() -> None:
    """Serve the provider; its port is the first line that is printed."""
    server = await asyncio.get_running_loop().create_server(StandIn, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def serve(home: str) -> None:
    """Serve the platform as `hud up` does; its address and key are the first line that is printed."""
    from hud_platform.process.config import PlatformConfig
    from hud_platform.server import serve

    config = PlatformConfig(Path(home), keys=True)
    serve(config, "127.0.0.1", 0, lambda at, key: print(json.dumps([at.url, key]), flush=True))


async def load(url: str, key: str, path: str, connections: int, seconds: float) -> None:
    """Ask as fast as answers come; prints requests a second and the median milliseconds of one."""
    where = urlsplit(url)
    request = (
        b"POST %s HTTP/1.1\r\nhost: %s\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s"
    ) % (path.encode(), where.netloc.encode(), key.encode(), len(BODY), BODY)
    took: list[float] = []
    warm = time.perf_counter() + 1.0
    end = warm + seconds

    async def ask() -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        while (started := time.perf_counter()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head + await reader.read(500)
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            assert await reader.readexactly(length) == ANSWER
            if started >= warm:
                took.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    took.sort()
    print(json.dumps([len(took) / seconds, took[len(took) // 2] * 1e3]), flush=True)


def start(core: int | None, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start this file in another role, on one core."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    return subprocess.Popen(
        [*pinned, sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def measured(core: int | None, *arguments: str) -> tuple[float, float]:
    """Run the load generator."""
    generator = start(core, "load", *arguments)
    told, _ = generator.communicate()
    rate, median = json.loads(told)
    return rate, median


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Return the processor time that a process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(seconds: float, connections: int) -> int:
    """Print requests a second; fail below the bar."""
    import httpx

    cores = sorted(os.sched_getaffinity(0))
    own, rest = cores[0], (cores[1] if len(cores) > 1 else None)
    with tempfile.TemporaryDirectory() as home:
        provider = start(rest, "standin")
        server = start(own, "server", home, STANDIN_API_KEY=KEY, OMP_NUM_THREADS="1")
        try:
            assert provider.stdout is not None
            assert server.stdout is not None
            target = f"http://127.0.0.1:{int(provider.stdout.readline())}"
            url, key = json.loads(server.stdout.readline())
            headers = {"authorization": f"Bearer {key}"}
            registered = {"url": f"{target}/v1", "key_env": "STANDIN_API_KEY"}
            body = {"name": "standin", "provider": registered}
            httpx.post(f"{url}/v2/models/provide", json=body, headers=headers).raise_for_status()
            size = (str(connections), str(seconds))
            direct, _ = measured(rest, target, KEY, "/v1/chat/completions", *size)
            before = cpu_seconds(server)
            rate, median = measured(rest, url, key, "/v1/chat/completions", *size)
            # The generator asks for a second before it begins to count.
            each = (cpu_seconds(server) - before) / (rate * (seconds + 1.0))
        finally:
            for process in (server, provider):
                process.terminate()
                process.wait()
    peer = {"peer": "provider directly", "peer_value": direct}
    held = report(f"requests on one core, {connections} at a time", rate, "/s", bar=BAR, **peer)
    report("median of a request", median, "ms")
    report("processor time of a request", each * 1e3, "ms")
    return int(not held)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["standin"]:
            asyncio.run(stand_in())
        case ["server", home]:
            serve(home)
        case ["load", url, key, path, connections, seconds]:
            asyncio.run(load(url, key, path, int(connections), float(seconds)))
        case _:
            parser = argparse.ArgumentParser()
            parser.add_argument("--seconds", type=float, default=size(8.0, 0.5))
            parser.add_argument("--connections", type=int, default=size(32, 2))
            sys.exit(main(**vars(parser.parse_args())))
