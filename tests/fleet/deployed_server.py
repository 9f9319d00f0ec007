"""A real server with a small model and deployed environments, for tests."""

import io
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.fleet.live_server import LiveServer

from hud.client.archives import pack

TEXTS = ["Say hello.", "Say a word."] * 5


@contextmanager
def deployed_server(
    root: Path,
    environments: dict[str, str],
    *,
    workers: int,
    model: str | None = "m",
    options: tuple[str, ...] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
):
    """Yield a server with environments, by name and source, and with a model, unless its name is None.

    `options`: more of `hud up`; `variables`: of its environment.
    """
    made = LiveServer(root / "home", "--workers", str(workers), *options)
    made.variables = dict(variables)
    made.start()
    with made.client() as api:
        if model is not None:
            body = {"name": model, "texts": TEXTS}
            api.post("/v2/models/create", json=body).raise_for_status()
        for name, source in environments.items():
            folder = root / name
            folder.mkdir()
            (folder / "env.py").write_text(source)
            deploy(api, folder, name)
    yield made
    made.stop()


def start_engine(made: LiveServer) -> None:
    """Have the engine of model `m` started, before the first rollout waits for it."""
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Say a word."}],
    }
    with made.client() as api:
        api.post("/v1/chat/completions", json=body, timeout=300).raise_for_status()


def deploy(api, source: Path, name: str = "echo") -> None:
    begun = api.post("/v2/builds/upload-url").json()
    archive = io.BytesIO()
    pack(source, archive)
    api.put(begun["upload_url"], content=archive.getvalue()).raise_for_status()
    body = {"build_id": begun["build_id"], "name": name}
    made = api.post("/v2/builds/trigger", json=body).json()
    wait(lambda: api.get(f"/v2/builds/{made['id']}/status").json()["status"] == "SUCCEEDED")


def wait(done, seconds=90.0):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.1)
