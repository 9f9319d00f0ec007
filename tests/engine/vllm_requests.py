"""Bodies of requests as vLLM documents them (what else is in one is refused), and what a stand-in makes of them."""

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hud.engine.drawing import Uniforms
from hud.trace import SamplingParams

INT64 = 2**63


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
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    stream: bool = False
    stream_options: StreamOptions | None = None


class LoadRequest(Strict):
    lora_name: str = Field(min_length=1)
    lora_path: str = Field(min_length=1)
    load_inplace: bool = False


class UnloadRequest(Strict):
    lora_name: str = Field(min_length=1)
    lora_int_id: int | None = None


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
    ids: list[int] = field(default_factory=list)
    rows: asyncio.Queue = field(default_factory=asyncio.Queue)


@dataclass
class Options:
    version: str = "0.32.0"
    served: str = "policy"
    dev_mode: bool = True
    lora_api: bool = True
    processed: bool = True
    token_ids: bool = True
    max_context: int = 512
    served_key: str | None = None


class Refused(Exception):
    def __init__(self, code: int, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.code, self.kind = code, kind
