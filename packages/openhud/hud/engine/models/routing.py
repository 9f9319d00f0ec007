"""Router choices of mixtures of experts: observed in a pass, and replayed in place of a router's own.

A router chooses the experts of a token by `torch.topk` over one score for each expert. Within `routed`, that call of every router is
observed. With choices to replay it returns those experts with their present scores, so that gates and gradients are those of the
weights now (router replay, arXiv 2510.11370).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Experts = npt.NDArray[np.int16]
"""(T, routers, k): experts of each token; -1: not known."""

MOST_BYTES = 1 << 30
"""Most memory of the choices of sampled sequences."""


class Routing:
    """The router choices of one pass."""

    def __init__(self, replayed: Tensor | None = None) -> None:
        """`replayed`: (N, routers, k) experts of each token of the pass; -1: the router's own."""
        self.replayed = replayed
        self._chosen: dict[int, list[Tensor]] = {}
        self._experts = 0

    def choose(self, router: int, own: Tensor, experts: int) -> Tensor:
        """Return the experts (N, k) that a router uses; `own` are those that it would choose of `experts`."""
        chosen = own
        if self.replayed is not None and self.replayed.shape[0] == len(own):
            recorded = self.replayed[:, router, : own.shape[1]]
            chosen = torch.where(recorded < 0, own, recorded)
        self._chosen.setdefault(router, []).append(chosen.detach())
        self._experts = max(self._experts, experts)
        return chosen

    def chosen(self) -> Tensor:
        """Return the choices (N, routers, k), int16, in the order of the tokens."""
        most = max(parts[0].shape[1] for parts in self._chosen.values())
        columns = [torch.cat(self._chosen[router]) for router in sorted(self._chosen)]
        padded = [
            nn.functional.pad(column, (0, most - column.shape[1]), value=-1) for column in columns
        ]
        return torch.stack(padded, 1).to(torch.int16)

    def load(self) -> Tensor | None:
        """Return (routers, experts): how many tokens each expert got; None without routers."""
        if not self._chosen:
            return None
        return torch.stack(
            [
                torch.bincount(torch.cat(self._chosen[router]).flatten(), minlength=self._experts)
                for router in sorted(self._chosen)
            ]
        )

    @contextmanager
    def part(self, start: int, end: int) -> Iterator[None]:
        """Compute the tokens from `start` to `end` alone inside the block, in the order of the pass."""
        replayed = self.replayed
        if replayed is not None:
            self.replayed = replayed[start:end]
        try:
            yield
        finally:
            self.replayed = replayed


_routing: ContextVar[Routing | None] = ContextVar("_routing", default=None)


@contextmanager
def routed(replayed: Tensor | None = None) -> Iterator[Routing]:
    """Observe the router choices of what is computed inside the block; replay those of `replayed`, see `Routing`."""
    routing = Routing(replayed)
    token = _routing.set(routing)
    try:
        yield routing
    finally:
        _routing.reset(token)


def routed_part(start: int, end: int) -> AbstractContextManager[None]:
    """Return the context of some tokens of the pass, for decoders that compute one sequence after another."""
    routing = _routing.get()
    return nullcontext() if routing is None else routing.part(start, end)


def recomputation() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of a checkpointed layer: its pass, and its recomputation, which replays the same."""
    routing = _routing.get()
    if routing is None or routing.replayed is None:
        return nullcontext(), nullcontext()
    return nullcontext(), routed(routing.replayed)


def routers_of(module: nn.Module) -> list[nn.Module]:
    """Return the routers of a model: the innermost modules with a number of experts and of those that a token gets."""
    named = {name: inner for name, inner in module.named_modules() if _routes(inner)}
    return [
        router
        for name, router in named.items()
        if not any(other.startswith(f"{name}.") for other in named)
    ]


def _routes(module: nn.Module) -> bool:
    numbers = (getattr(module, name, None) for name in ("top_k", "num_experts"))
    return all(type(number) is int and number > 0 for number in numbers)


def observe(module: nn.Module) -> None:
    """Let passes within `routed` observe the routers of a model."""
    for number, router in enumerate(routers_of(module)):
        router.forward = _Observed(router, number)


class _Observed:
    """The forward method of a router; a copied model has a copy of its own."""

    def __init__(self, router: nn.Module, number: int) -> None:
        self.router, self.number = router, number

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        routing = _routing.get()
        forward = type(self.router).forward
        if routing is None:
            return forward(self.router, *arguments, **settings)
        with _TopK(routing, self.router, self.number):
            return forward(self.router, *arguments, **settings)


class _TopK(TorchFunctionMode):
    """Observes the call of `topk` by which a router chooses."""

    def __init__(self, routing: Routing, router: Any, number: int) -> None:
        super().__init__()
        self.routing, self.number = routing, number
        self.shape = (router.num_experts, router.top_k)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "topk":
            return result
        scores = args[0] if args else kwargs["input"]
        if scores.ndim != 2 or (scores.shape[1], result.indices.shape[1]) != self.shape:
            return result  # Groups of experts.
        chosen = self.routing.choose(self.number, result.indices, scores.shape[1])
        if chosen is result.indices:
            return result
        return torch.return_types.topk((scores.gather(1, chosen), chosen))


class SampledRoutes:
    """Router choices of sampled sequences, for their training pass; the least recently used are dropped.

    They belong to the process that samples: what another one sampled, or one that ended, is not known here.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[bytes, Experts] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, ids: Sequence[int], experts: Tensor) -> None:
        """Keep the choices (T, routers, k) of the first T tokens of a sequence."""
        key, held = _key(ids), experts.to("cpu", torch.int16).numpy()
        with self._lock:
            self._drop(key)
            self._held[key] = held
            self._bytes += held.nbytes
            while self._bytes > self._most_bytes and len(self._held) > 1:
                self._drop(next(iter(self._held)))

    def of(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> Experts | None:
        """Return the choices of the first tokens of a sequence, or None."""
        with self._lock:
            experts = self._held.get(key := _key(ids))
            if experts is not None:
                self._held.move_to_end(key)
            return experts

    def _drop(self, key: bytes) -> None:
        dropped = self._held.pop(key, None)
        if dropped is not None:
            self._bytes -= dropped.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> SampledRoutes:
        return self  # A copied decoder samples for the same training.


def _key(ids: Sequence[int] | npt.NDArray[np.int64]) -> bytes:
    return hashlib.sha256(np.asarray(ids, np.int64).tobytes()).digest()
