"""Processes of the real vLLM, and folders of the pretrained model that they serve.

`HUD_TEST_VLLM` names the Python that has vLLM: its build for CPUs (`make test-integration NAME=vllm`), or one for CUDA.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from tests.integrations.vllm.vllm_policy import vllm_policy

PYTHON = os.environ.get("HUD_TEST_VLLM")
ABSENT = "HUD_TEST_VLLM names no Python with vLLM; make test-integration NAME=vllm installs its CPU build"
CONTEXT = 1024
"""Context length of the servers, in tokens; the model's is longer."""
START_SECONDS = 600.0
VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = (
    *("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"),
    *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", "32"),
    *("--enforce-eager", "--gpu-memory-utilization", "0.2"),
    *("--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
)
"""What docs/vllm.md starts a server with, in the smallest sizes; float32, as the tests' trainer computes."""


class VllmProcess:
    """A vLLM server and its engine's process, on one port for its life."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            self.port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self.model = str(folder)
        """The model's name there."""
        self._options = ("--model", str(folder), "--port", str(self.port), *OPTIONS, *options)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server; `wait` for it before use."""
        module = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [PYTHON, *module, *self._options],
                env={**os.environ, **VARIABLES},
                cwd=self.log.parent,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers its health check."""
        late = time.monotonic() + START_SECONDS
        while not self._healthy():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > late:
                raise AssertionError(f"vLLM did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server and its engine at once (SIGKILL)."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def running(self) -> int:
        """Return how many requests the engine computes, by its own metrics."""
        return self._metric("num_requests_running")

    def generated(self) -> int:
        """Return how many tokens the server has sampled since its start, by its own metrics."""
        return self._metric("generation_tokens_total")

    def ask(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """POST a request as any client does; return the status and the JSON of the answer."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def checksums(self) -> dict[str, str]:
        """Return vLLM's checksums of its tensors, without those that a CPU has packed and emptied."""
        _, answer = self.ask("/weight_checker", {"action": "checksum"})
        empty = hashlib.sha256(b"").hexdigest()
        return {name: value for name, value in answer["checksums"].items() if value != empty}

    def adapters(self) -> set[str]:
        """Return the names of the loaded adapters."""
        cards = json.loads(self._read("/v1/models"))["data"]
        return {card["id"] for card in cards if card["parent"] is not None}

    def _healthy(self) -> bool:
        try:
            self._read("/health")
        except OSError:
            return False
        return True

    def _metric(self, name: str) -> int:
        text = self._read("/metrics").decode()
        rows = [row for row in text.splitlines() if row.startswith(f"vllm:{name}{{")]
        return int(sum(float(row.rpartition(" ")[2]) for row in rows))

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return response.read()


def float32_folder(source: Path, folder: Path, *, tied: bool) -> Path:
    """Write a model in float32; not `tied`: with a vocabulary projection of its own, which vLLM on a CPU renews."""
    shutil.copytree(source, folder)
    tensors = {
        name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    if not tied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    types = {"dtype": "float32", "torch_dtype": "float32"}
    (folder / "config.json").write_text(
        json.dumps({**config, **types, "tie_word_embeddings": tied})
    )
    return folder


def real_policy(servers, root, folder, **options):
    """Return a policy that real servers sample; they may take minutes."""
    patience = {"look": 0.5, "health": 60.0, "server": START_SECONDS}
    return vllm_policy(servers, root, folder=folder, **{**patience, **options})
