"""`hud models export`: as a folder or one file, with a card, and to a hub that stands on loopback."""

import json
import os
import subprocess
import sys

import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.integrations.gguf.test_model_writing import saved
from tests.integrations.gguf.written_files import decoder
from tests.platform.gateway.gateway_server import serving
from tests.platform.models.hub_stand_in import TOKEN, UploadHub

from hud.engine.pretrained import read_weights
from hud_integrations.gguf.conversion import convert

COMMANDS = """
import json, os, sys
from hud.cli.main import run
for command, token in json.loads(sys.argv[1]):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    print("exit", run(["models", *command]), file=sys.stderr, flush=True)
"""


def test_a_model_is_exported_as_one_file_with_its_card(hud_models, tmp_path):
    folder = saved(tmp_path / "small", decoder())
    hud_models("add", str(folder), "--name", "small")
    hud_models("export", "small", "--to", "gguf", "-o", "out", "--dtype", "float32")
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "small.gguf"]
    (tmp_path / "again").mkdir()
    convert(out / "small.gguf", tmp_path / "again", None)
    before, after = read_weights(folder), read_weights(tmp_path / "again")
    assert all((before[name] == after[name]).all() for name in before | after)
    card = (out / "README.md").read_text()
    assert "llama-cli -m small.gguf\n" in card
    assert 'library_name: "gguf"' in card
    assert str(tmp_path) not in card


def test_a_form_or_a_model_that_cannot_be_written_is_refused_and_leaves_no_file(
    hud_models, tmp_path
):
    hud_models("add", str(tiny_folder()), "--name", "m")
    error = hud_models("export", "m", "--to", "onnx", "-o", "out", code=2).err
    assert "There is no format 'onnx'; there are hf, peft, gguf." in error
    error = hud_models("export", "m", "--to", "gguf", "-o", "out", code=2).err
    assert "splits texts in a way that GGUF has no name for" in error
    error = hud_models("export", "m", "-o", "out", "--dtype", "float16", code=2).err
    assert "set for a file, such as GGUF, alone" in error
    assert "goes with --push" in hud_models("export", "m", "-o", "out", "--public", code=2).err
    error = hud_models("export", "m", "-o", "out", "--push", "no-owner", code=2).err
    assert "'no-owner' is no id of the hub; write it as OWNER/NAME." in error
    hud_models("export", "m", "-o", "out")
    assert (tmp_path / "out" / "README.md").is_file()


def commands(tmp_path, url, *given):
    """Run commands in one process whose hub is at `url`; return what each wrote to its error output, and exit codes."""
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hub")}
    environment |= {"HF_HUB_DISABLE_XET": "1"}
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(given)],
        env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    codes = [int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("exit ")]
    return done.stdout + done.stderr, codes


@pytest.mark.slow
def test_a_model_is_pushed_to_a_new_repository_of_the_hub(hud_models, home, tmp_path):
    hud_models("add", str(tiny_folder()), "--name", "m")
    hub = UploadHub()

    def export(folder, repository, *further):
        return ["export", "m", "-o", str(tmp_path / folder), "--push", repository, *further]

    with serving(hub) as url:
        told, codes = commands(
            tmp_path,
            url,
            (export("none", "me/arith"), None),
            (export("wrong", "me/arith"), "hf_another"),
            (export("one", "me/arith"), TOKEN),
            (export("two", "me/arith"), TOKEN),
            (export("three", "me/open", "--public"), TOKEN),
        )
    assert codes == [2, 2, 0, 2, 0], told
    assert "There is no token of the Hugging Face hub on this machine." in told
    assert "may not create me/arith" in told
    assert f"Uploaded it to {url}/me/arith." in told
    assert "me/arith exists on the hub already; choose another name" in told
    assert hub.visibility == {"me/arith": "private", "me/open": "public"}
    assert hub.messages == ["m at base"] * 2
    folder = tmp_path / "one"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert hub.repositories["me/arith"] == files
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert b'from_pretrained("me/arith")' in files["README.md"]
    told, codes = commands(tmp_path, "http://127.0.0.1:9", (export("four", "me/arith"), TOKEN))
    assert codes == [2]
    assert "me/arith could not be uploaded to the hub" in told
    assert (tmp_path / "four" / "model.safetensors").is_file()
