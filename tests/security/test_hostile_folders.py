"""Odd files of a model folder are refused in a sentence when the model is added, and no later request is answered with 500."""

import json
import os
import shutil

import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.security.server import AttackedServer, bearer

pytestmark = pytest.mark.timeout(180)

VALUES = [
    True,
    -1,
    10**30,
    1.5,
    float("nan"),
    "x",
    {},
    {"a": 1},
    [None],
    ["1"],
    [-5],
    2**63,
    "\ud800",
]
CONTENTS = [b"", b"\xff\xfe\x00", b"null", b"[]", b"{", b"[" * 100_000, b"1" * 5000, b"{}", b'"x"']
FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return AttackedServer(tmp_path_factory.mktemp("home"))


async def statuses(server, folder):
    """Return the status of adding the folder, and those of requests if it was added."""
    headers = bearer(server.key())
    added = await server.ask(
        "POST", "/v2/models/add", headers, {"source": str(folder), "name": "odd"}
    )
    answers = [added]
    if added.status == 200:
        turn = {"model": "odd", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        answers.append(await server.ask("POST", "/v1/chat/completions", headers, turn))
        paths = ("/v2/models/odd/architecture", "/v2/models", "/v1/models/odd")
        answers += [await server.ask("GET", path, headers) for path in paths]
        await server.ask("DELETE", "/v2/models/odd", headers)
    for answer in answers:
        assert answer.status < 500, answer.text
    return [answer.status for answer in answers]


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny_folder(), tmp_path / "model")


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("generation_config.json", "eos_token_id"),
        ("config.json", "eos_token_id"),
        ("config.json", "bos_token_id"),
        ("config.json", "dtype"),
    ],
)
async def test_odd_values(server, folder, name, key, value):
    path = folder / name
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, key: value}))
    await statuses(server, folder)


@pytest.mark.parametrize("name", FILES)
async def test_odd_contents(server, tmp_path, name):
    for place, content in enumerate(CONTENTS):
        folder = shutil.copytree(tiny_folder(), tmp_path / str(place))
        (folder / name).write_bytes(content)
        await statuses(server, folder)


@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
@pytest.mark.parametrize("name", [*FILES, "model.safetensors"])
async def test_what_is_no_file(server, folder, name, kind):
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(path)
    assert await statuses(server, folder) == [400]
