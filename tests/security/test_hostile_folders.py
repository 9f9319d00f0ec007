"""Odd files of a model folder are refused in a sentence when the model is added, and no later request is answered with 500."""

import json
import os
import shutil
import struct

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


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
async def test_odd_contents(server, tmp_path, name):
    for place, content in enumerate(CONTENTS):
        folder = shutil.copytree(tiny_folder(), tmp_path / str(place))
        (folder / name).write_bytes(content)
        await statuses(server, folder)


def weights(**changes):
    """Return a file of weights with the tiny model's header, changed by tensor."""
    whole = (tiny_folder() / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    first, second = list(header)[:2] if "__metadata__" not in header else list(header)[1:3]
    header[first] |= changes
    if changes.pop("same", False):
        header[first] = dict(header[second])
    written = json.dumps(header).encode()
    return struct.pack("<Q", len(written)) + written + whole[8 + length :]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 1 << 62) + b"{",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 4) + b'{"\xff',
        struct.pack("<Q", 1 << 17) + b'{"a":' + b"[" * (1 << 17),
        weights(shape=[(1 << 63) - 1]),
        weights(shape=[0, 1 << 62], data_offsets=[0, 0]),
        weights(data_offsets=[-8, 8]),
        weights(dtype="X"),
        weights(same=True),
    ],
    ids=lambda content: content[:40],
)
async def test_damaged_weights(server, folder, content):
    """Refused before a request is served: the weights are read with the first one, in the engine of all models."""
    (folder / "model.safetensors").write_bytes(content)
    assert await statuses(server, folder) == [400]


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("kind", ["adapter", "empty", "damaged", "link"])
async def test_an_adapter_is_refused_by_name_whatever_it_holds(server, folder, kind, with_base):
    """It was added as its base, without a word of the adapter."""
    if not with_base:
        for file in ("config.json", "model.safetensors"):
            (folder / file).unlink()
    config = folder / "adapter_config.json"
    if kind == "link":
        config.symlink_to("/etc/shadow")
    else:
        config.write_text(
            '{"peft_type": "LORA", "r": 4}' if kind == "adapter" else "{" * (kind == "damaged")
        )
        (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{")
    before = await registered(server)
    answer = await server.ask(
        "POST", "/v2/models/add", bearer(server.key()), {"source": str(folder), "name": "x"}
    )
    assert answer.status == 400
    assert "holds an adapter (adapter_config.json)" in answer.text
    assert "merge it into its base model" in answer.text
    assert await registered(server) == before


async def registered(server):
    """Return the names of the registered models."""
    answer = await server.ask("GET", "/v2/models", bearer(server.key()))
    return [model["model_name"] for model in answer.json()["items"]]


@pytest.mark.parametrize("name", ["w.safetensors", "w.bin", "a\0b", "x" * 5000, ".", ""])
async def test_an_index_that_names_no_file(server, folder, name):
    if name.startswith("w."):
        os.mkfifo(folder / name)
    index = {"weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert await statuses(server, folder) in ([400], [404])


PATHS = ["~nobody-of-this-machine/x", "x" * 5000, "/etc/" + "y" * 300, "/dev/null/x", "a\0b", ""]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path[:12])
async def test_paths_that_are_none(server, path):
    headers = bearer(server.key())
    body = {"source": path, "name": "odd"}
    added = await server.ask("POST", "/v2/models/add", headers, body)
    assert 400 <= added.status < 500, added.text
    sizes = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}
    made = {"name": "small", "texts": ["red green"] * 8, "sizes": sizes}
    await server.ask("POST", "/v2/models/create", headers, made)
    body = {"folder": path or "/proc/x"}
    exported = await server.ask("POST", "/v2/models/small/export", headers, body)
    assert 400 <= exported.status < 500, exported.text


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


@pytest.mark.parametrize("name", [name for name in FILES if name != "tokenizer.json"])
async def test_large_files_are_refused_before_they_are_read(server, folder, name):
    """A config.json of 200 MB was parsed again by each request that read it: half a minute for the first."""
    content = (folder / name).read_bytes() if (folder / name).exists() else b"{}"
    (folder / name).write_bytes(content + b" " * (9 << 20))
    headers = bearer(server.key())
    body = {"source": str(folder), "name": "large"}
    answer = await server.ask("POST", "/v2/models/add", headers, body)
    assert answer.status == 400
    assert "bytes; 8,388,608 are the most" in answer.text
