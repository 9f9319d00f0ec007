"""Folders of downloaded models hold data alone: none reads another folder's files, and a damaged one is refused in a sentence."""

import json
import shutil
import struct

import pytest
from tests.engine.tiny_policy import tiny_folder

from hud.engine.pretrained import load_decoder
from hud.errors import HudError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny_folder(), tmp_path / "model")


@pytest.mark.parametrize("place", ["absolute", "relative"])
def test_an_index_names_files_of_its_own_folder_alone(folder, place):
    """The weights of another team, or of a model that only the server's token may fetch, are on the same disk."""
    other = tiny_folder() / "model.safetensors"
    name = str(other) if place == "absolute" else "../other/model.safetensors"
    shutil.copytree(tiny_folder(), folder.parent / "other")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(HudError, match="outside"):
        load_decoder(folder)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {"a": 7}}, "{"])
def test_a_damaged_index_is_refused(folder, index):
    text = index if isinstance(index, str) else json.dumps(index)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(HudError):
        load_decoder(folder)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<Q", 1 << 60) + b"{",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 8) + b'{"a":7}}',
        b"",
    ],
)
def test_headers_of_any_size_are_refused(folder, head):
    (folder / "model.safetensors").write_bytes(head)
    with pytest.raises(HudError):
        load_decoder(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1 << 60},
        {"hidden_size": "64"},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 0, "head_dim": None},
        {"rope_theta": "x", "rope_parameters": None},
        {"vocab_size": -1},
        {"architectures": "LlamaForCausalLM"},
        {"dtype": {"a": 1}},
    ],
    ids=str,
)
def test_shapes_that_are_none_are_refused(folder, change):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(HudError):
        load_decoder(folder)
