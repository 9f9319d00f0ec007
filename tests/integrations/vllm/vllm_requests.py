"""Bodies of requests as vLLM documents them (what else is in one is refused), and what a stand-in makes of them."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from hud.engine.sample.token_sampling import Uniforms
from hud.trace import SamplingParams

INT64 = 2**63
BLOCK = 16
"""Tokens in a block of the prefix cache on a GPU."""
CPU_BLOCK = 128


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(Strict):
    include_usage: bool = False


class CompletionRequest(Strict):
    """Those of vllm/entrypoints/openai/completion/protocol.py that a rollout worker may use."""

    model: str
    prompt: list[int] = Field(min_length=1)
    max_tokens: int = Field(16, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_weight_versions: bool = False
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    stream: bool = False
    stream_options: StreamOptions | None = None


class SamplingSettings(Strict):
    """Those of vllm/sampling_params.py that a rollout worker may use; they are not taken from generation_config.json."""

    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-INT64, lt=INT64)
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    logprobs: int | None = Field(None, ge=0, le=20)
    detokenize: bool = True


class GenerateRequest(Strict):
    """Those of vllm/entrypoints/scale_out/token_in_token_out/protocol.py that a rollout worker may use."""

    model: str
    token_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingSettings
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    stream: bool = False
    stream_options: StreamOptions | None = None

    def completion(self) -> CompletionRequest:
        sampling = self.sampling_params.model_dump(exclude={"detokenize"})
        return CompletionRequest(
            prompt=self.token_ids,
            return_token_ids=True,
            return_weight_versions=True,
            **self.model_dump(exclude={"token_ids", "sampling_params"}),
            **sampling,
        )


class LoadRequest(Strict):
    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadRequest(Strict):
    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = None


class VersionRequest(Strict):
    new_version: str


class CheckRequest(Strict):
    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


class RpcRequest(Strict):
    method: Literal["reload_weights"]
    args: list[str] = []
    kwargs: dict[str, str] = {}
    timeout: float | None = None


@dataclass(eq=False)
class Sequence:
    asked: CompletionRequest
    params: SamplingParams
    uniforms: Uniforms
    cached: int
    generated: bool = False
    """True: it was asked of `/inference/v1/generate`."""
    ids: list[int] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """The name of the weights of every token."""
    rows: asyncio.Queue = field(default_factory=asyncio.Queue)


@dataclass
class Options:
    version: str = "0.33.0"
    served: str = "policy"
    dev_mode: bool = True
    lora_api: bool = True
    processed: bool = True
    token_ids: bool = True
    max_context: int = 512
    served_key: str | None = None
    gpus: int = 1
    layout: str = ""
    """Beginning of its tensors' names: of other names where it joins and cuts them otherwise."""
    scale_out: bool = False
    """True: started with --enable-scale-out."""
    block: int = BLOCK
    """Tokens in a block of its prefix cache."""


class Refused(Exception):
    def __init__(self, code: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.code, self.kind = code, kind


class PrefixCache:
    """What was computed, by blocks; under other adapters and other salts it is something else."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[tuple] = set()

    def look_up(self, asked: CompletionRequest) -> int:
        """Return how many tokens of a prompt are known, and know all of them from now on.

        The last token is always computed, for its logits.
        """
        found = 0
        for end, key in self._blocks(asked, []):
            if key not in self._known or end == len(asked.prompt):
                break
            found = end
        self.add(asked, [])
        return found

    def add(self, asked: CompletionRequest, drawn: list[int]) -> None:
        self._known.update(key for _, key in self._blocks(asked, drawn))

    def _blocks(self, asked: CompletionRequest, drawn: list[int]) -> list[tuple[int, tuple]]:
        ids = asked.prompt + drawn
        ends = range(self._block, len(ids) + 1, self._block)
        return [(end, (asked.model, asked.cache_salt, *ids[:end])) for end in ends]


def checksums_of(decoder: torch.nn.Module, layout: str) -> dict[str, str]:
    return {
        f"dp0:pp0:pcp0:tp0:{layout}{name}": hashlib.sha256(
            tensor.detach().contiguous().view(torch.uint8).numpy()
        ).hexdigest()
        for name, tensor in decoder.named_parameters()
    }


def choice_of(sequence: Sequence, rows: list[dict[str, Any]], *, ids: bool) -> dict[str, Any]:
    """Return drawn tokens as a choice of a completion; without `ids` as older versions do."""
    asked = sequence.asked
    if sequence.generated:
        return _generated_choice(sequence, rows)
    choice: dict[str, Any] = {
        "index": 0,
        "text": " " * len(rows),
        "finish_reason": rows[-1]["reason"],
        "stop_reason": None,
    }
    rows = [row for row in rows if row["token"] is not None]
    if asked.logprobs is not None:
        choice["logprobs"] = {
            "text_offset": [0] * len(rows),
            "tokens": [f"token_id:{row['token']}" for row in rows],
            "token_logprobs": [row["logprob"] for row in rows],
            "top_logprobs": [row["top"] for row in rows],
        }
    if asked.return_token_ids and ids:
        choice["token_ids"] = [row["token"] for row in rows]
    if asked.return_weight_versions and choice["finish_reason"]:
        choice["weight_versions"] = _spans(sequence.weights)
    return choice


def _generated_choice(sequence: Sequence, rows: list[dict[str, Any]]) -> dict[str, Any]:
    reason = rows[-1]["reason"]
    rows = [row for row in rows if row["token"] is not None]
    content = [
        {
            "token_id": row["token"],
            "logprob": row["logprob"],
            "rank": None,
            "top_logprobs": [
                {"token_id": int(name.split(":")[1]), "logprob": value, "rank": None}
                for name, value in row["top"].items()
            ],
        }
        for row in rows
    ]
    return {
        "index": 0,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": [row["token"] for row in rows],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": _spans(sequence.weights) if reason else None,
        "logprobs": None if sequence.asked.logprobs is None else {"content": content},
    }


def _spans(names: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        if not spans or spans[-1]["version"] != name:
            spans.append({"version": name, "start": place})
        spans[-1]["end"] = place + 1
    return spans
