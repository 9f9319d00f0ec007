"""`hud models fork` of a folder or a hub id that is no model yet: it is added first."""

import hashlib
import json
import os
import subprocess
import sys
from urllib.parse import unquote

import pytest
from tests.engine.published_families import published
from tests.engine.tiny_policy import tiny_folder
from tests.platform.gateway.gateway_server import serving

from hud.errors import NotFoundError
from hud.train import TrainingClient

COMMIT = "a" * 40


def models(hud_models):
    return {one["model_name"]: one for one in json.loads(hud_models("list", "--json").out)}


def test_a_folder_is_added_once_and_forked(hud_models, tmp_path):
    os.symlink(tiny_folder(), tmp_path / "weights")
    told = hud_models("fork", "weights", "--name", "arith-rl", "--json")
    assert json.loads(told.out)["model_name"] == "arith-rl"
    assert "is no model here yet" in told.err
    assert "is no model here yet" not in hud_models("fork", "./weights", "--name", "again").err
    found = models(hud_models)
    base = found.pop(tiny_folder().name.lower())
    assert found.keys() == {"arith-rl", "again"}
    assert {one["base_model_id"] for one in found.values()} == {base["id"]}


def test_a_model_comes_before_a_folder_of_its_name(hud_models, tmp_path):
    hud_models("add", str(tiny_folder()), "--name", "base")
    (tmp_path / "base").mkdir()
    assert "is no model" not in hud_models("fork", "base", "--name", "one").err
    assert models(hud_models).keys() == {"base", "one"}


def test_what_is_neither_model_nor_folder_nor_hub_id_is_not_fetched(hud_models):
    assert "There is no model 'nothing'" in hud_models("fork", "nothing", "--name", "x", code=2).err
    assert "holds no config.json" in hud_models("fork", ".", "--name", "x", code=2).err
    assert models(hud_models) == {}


async def test_a_hub_id_that_is_asked_for_elsewhere_names_the_command_that_adds_it(home):
    command = "hud models add Qwen/Qwen3.5-4B --name qwen-qwen3.5-4b"
    with pytest.raises(NotFoundError, match=command):
        await TrainingClient("Qwen/Qwen3.5-4B").model_id()


class Hub:
    """A folder in the Hugging Face hub's wire format: a listing of its files, and each file by name."""

    def __init__(self, folder):
        self.files = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        self.asked = []

    async def __call__(self, scope, receive, send):
        path = unquote(scope["path"])
        self.asked.append((scope["method"], path))
        name = path.rpartition("/")[2]
        status, body, headers = 404, b"{}", [(b"x-error-code", b"RepoNotFound")]
        if path.startswith("/api/models/Qwen/Qwen3.5-4B"):
            siblings = [{"rfilename": one} for one in self.files]
            found = {"id": "Qwen/Qwen3.5-4B", "sha": COMMIT, "siblings": siblings}
            if "/tree/" in path:
                found = [
                    {"type": "file", "path": one, "size": len(data), "oid": _etag(data)}
                    for one, data in self.files.items()
                ]
            status, body, headers = 200, json.dumps(found).encode(), []
        elif path.startswith("/Qwen/Qwen3.5-4B/resolve/") and name in self.files:
            status, body = 200, self.files[name]
            headers = [(b"etag", f'"{_etag(body)}"'.encode()), (b"x-repo-commit", COMMIT.encode())]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )


def _etag(data):
    return hashlib.sha1(data).hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hub_id_is_fetched_with_progress_added_and_forked(home, tmp_path):
    hub = Hub(published("qwen3_5", tmp_path / "published"))
    with serving(hub) as url:
        environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": "1",
        }
        environment.pop("HF_HUB_OFFLINE", None)

        def fork(base, name):
            command = [sys.executable, "-m", "hud.cli.main", "models", "fork", base, "--name", name]
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=500
            )

        done = fork("Qwen/Qwen3.5-4B", "arith-rl")
        assert done.returncode == 0, done.stderr
        assert "Fetching from the Hugging Face hub" in done.stderr
        assert "100%" in done.stderr  # The hub's own progress bars.
        assert ("GET", f"/Qwen/Qwen3.5-4B/resolve/{COMMIT}/model.safetensors") in hub.asked
    listed = subprocess.run(
        [sys.executable, "-m", "hud.cli.main", "models", "list", "--json"],
        env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert {one["model_name"] for one in json.loads(listed.stdout)} == {
        "qwen-qwen3.5-4b",
        "arith-rl",
    }


@pytest.mark.parametrize("command", ["checkpoints", "head", "vllm"])
def test_a_hub_id_that_is_no_model_is_named_as_such(hud_models, command):
    told = hud_models(command, "Qwen/Qwen3-0.6B", code=2)
    assert "'Qwen/Qwen3-0.6B'" in told.err
    assert "route" not in told.err


def test_the_sampler_s_limits_are_the_model_s_and_a_fork_keeps_how_it_is_trained(hud_models):
    limits = ("--kv-cache", "1.5GiB", "--slots", "4", "--max-context", "128")
    hud_models("add", str(tiny_folder()), "--name", "base", "--lora-rank", "4", *limits)
    hud_models("fork", "base", "--name", "heir")
    hud_models("fork", "base", "--name", "other", "--slots", "2")
    configs = {slug: model["config"] for slug, model in models(hud_models).items()}
    for slug, slots in (("base", 4), ("heir", 4), ("other", 2)):
        config = configs[slug]
        assert (config["training"], config["lora_rank"]) == ("lora", 4)
        assert config["cache_bytes"] == 3 << 29
        assert (config["slots"], config["max_context"]) == (slots, 128)
    said = hud_models("add", str(tiny_folder()), "--name", "no", "--kv-cache", "much", code=2).err
    assert "'much' is no size; write it as 8GiB or 512MiB." in said
