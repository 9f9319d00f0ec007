"""A version of the weights as files that servers load, and probes that verify that a server has them."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.lora import LoraConfig, save_adapter
from hud.engine.pretrained import save_decoder
from hud_integrations.vllm.completion import Piece
from hud_integrations.vllm.weight_files.folder import WeightFolder
from hud_integrations.vllm.weight_files.sender import Version
from hud_integrations.vllm.weight_transfer import Connect, Transfer

KEPT = 2
"""Number of kept folders: the newest, and the previous one, for turns that finish with it."""
PROBES = 4
PROBE_TOKENS = 8
PROBE_TEMPERATURE = 0.25
"""Far from 1, so that logprobs before and after it differ."""
PROBE_TOP = 5
LEAST_GAP = 0.075
"""Mean difference in nats, at temperature 1, that is allowed for any logits."""
MOST_ROUNDINGS = 3.0
"""Allowed mean difference at temperature 1, in spacings of bf16 at the logits: equal weights differ by 0.5 to 1.2 of them in bf16,
other weights by 7 and more."""


@dataclass(frozen=True)
class Probe:
    """A short prompt, and the logprobs of the next token under the published weights."""

    prompt: list[int]
    processed: Tensor
    """(V,) fp32 logprobs at `PROBE_TEMPERATURE`."""
    raw: Tensor
    """(V,) fp32 logprobs at temperature 1."""
    rounding: float
    """Spacing of bf16 at the largest logits; see `rounding_of`."""


@dataclass(frozen=True)
class Publication:
    """One version of the weights for servers."""

    version: str | None
    folder: Path | None
    adapter: str | None
    """Name of the adapter on the servers; None: full weights."""
    probes: tuple[Probe, ...]
    transfer: Transfer | None = None
    """Sends the weights as tensors, where servers do not load a folder."""
    tied: bool = False
    """True: the vocabulary projection is the embedding."""
    files: Version | None = None
    """The folder as it is sent to nodes that do not see it; None with `transfer`."""

    @property
    def salt(self) -> str:
        """Salt of the prefix cache, so that keys of another version are never reused."""
        return name_of(self.version)

    @property
    def _tied_cure(self) -> str:
        if not self.tied or self.adapter is not None or self.version is None:
            return ""
        return (
            ". vLLM on a CPU packs the vocabulary projection of tied embeddings once and never renews it: train such a "
            "model by LoRA, or sample it on GPUs"
        )

    def mistake(self, answers: list[Piece]) -> str | None:
        """Return the error of a server with these answers to the probes, None if they match."""
        processed = raw = allowed = 0.0
        count = 0
        for probe, answer in zip(self.probes, answers, strict=True):
            reported = dict(answer.top[0] if answer.top else [])
            reported.update(zip(answer.token_ids, answer.logprobs, strict=True))
            for token, logprob in reported.items():
                if token >= len(probe.raw):
                    return (
                        f"it knows the token {token}, and this model only {len(probe.raw)} tokens"
                    )
                processed += abs(logprob - float(probe.processed[token]))
                raw += abs(logprob - float(probe.raw[token]))
                allowed += max(LEAST_GAP, MOST_ROUNDINGS * probe.rounding)
                count += 1
        if not count:
            return "it gives no logprobs"
        if raw < processed / 2 and raw < allowed:
            return (
                "its logprobs are those before temperature; start it with "
                "--logprobs-mode processed_logprobs"
            )
        # At a lower temperature, errors of logits are as many times larger.
        if processed * PROBE_TEMPERATURE > allowed:
            return (
                f"it has other weights: its logprobs are {processed / count:.2f} nats from this model's, and rounding "
                f"explains {allowed / count / PROBE_TEMPERATURE:.2f} at most. Have it serve this model's folder{self._tied_cure}"
            )
        return None


def rounding_of(logits: Tensor) -> float:
    """Return the spacing of bf16 at the largest of the logits (..., V), which logprobs depend on: 0.125 from 16 to 32.

    Servers compute in bf16 even where the trainer does not, so its rounding is the unit of differences between equal weights.
    """
    largest = float(logits.topk(PROBE_TOP, dim=-1).values.abs().max())
    return float(torch.finfo(torch.bfloat16).eps * 2 ** math.floor(math.log2(max(largest, 1.0))))


def name_of(version: str | None) -> str:
    """Return the name of a version on servers."""
    return version or "base"


class Publisher:
    """Publishes the weights of one decoder."""

    def __init__(
        self,
        decoder: Decoder,
        lora: LoraConfig | None,
        *,
        root: Path,
        name: str,
        find: Callable[[str | None], Path | None],
        connect: Connect | None = None,
    ) -> None:
        """`find` returns where a version lies already, if it does; others are written to `root`.

        Both must be seen by servers under the same paths. `name` begins the names of adapters. With `connect`
        all weights are sent as tensors instead.
        """
        self._decoder = decoder
        self._lora = lora
        self._root = root.resolve()
        self._name = name
        self._find = find
        self.changing = threading.RLock()
        """Held while the weights change."""
        self._tied = decoder.config.tie_word_embeddings
        self._transfer = None if connect is None else Transfer(decoder, self.changing, connect)
        self._earlier: list[WeightFolder] = []

    def publish(self, version: str | None) -> Publication:
        """Return the present weights, on disk; they must not change meanwhile."""
        if self._transfer is not None:
            return Publication(version, None, None, self._probes(), self._transfer, tied=self._tied)
        name = name_of(version)
        folder = (self._find(version) or self._written(name)).resolve()
        adapter = None if self._lora is None else f"{self._name}-{name}"
        own = WeightFolder(name, folder)
        # A version that is written again has other files at the same place.
        earlier = [other for other in self._earlier if other.path != folder]
        files = Version(self._name, own, tuple(earlier))
        self._earlier = [*earlier[1 - KEPT :], own]
        return Publication(version, folder, adapter, self._probes(), tied=self._tied, files=files)

    def _written(self, name: str) -> Path:
        folder = self._root / name
        unfinished = self._root / f".writing-{name}"
        for old in (folder, unfinished):
            shutil.rmtree(old, ignore_errors=True)
        unfinished.mkdir(parents=True)
        if self._lora is None:
            save_decoder(self._decoder, unfinished)
        else:
            save_adapter(self._decoder, self._lora, unfinished)
        os.rename(unfinished, folder)
        earlier = sorted(
            (path for path in self._root.iterdir() if not path.name.startswith(".")),
            key=lambda path: path.stat().st_mtime_ns,
        )
        for path in earlier[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)
        return folder

    @torch.no_grad()
    def _probes(self) -> tuple[Probe, ...]:
        """Return prompts spread over the vocabulary, each with the logprobs of the next token."""
        decoder = self._decoder
        size = decoder.config.vocab_size
        # Any ids suffice, if equal on both sides; a fixed stride includes rare and common ones.
        ids = [(place * 7919 + 11) % size for place in range(PROBES * PROBE_TOKENS)]
        device = decoder.device
        positions = torch.arange(PROBE_TOKENS, device=device).repeat(PROBES)
        starts = torch.arange(0, len(ids) + 1, PROBE_TOKENS, device=device)
        hidden = decoder.hidden_packed(torch.tensor(ids, device=device), positions, starts)
        logits = decoder.logits(hidden[starts[1:] - 1]).float().cpu()
        raw = logits.log_softmax(-1)
        processed = (logits / PROBE_TEMPERATURE).log_softmax(-1)
        rows = [ids[start : start + PROBE_TOKENS] for start in range(0, len(ids), PROBE_TOKENS)]
        return tuple(
            Probe(rows[row], processed[row], raw[row], rounding_of(logits[row]))
            for row in range(PROBES)
        )
