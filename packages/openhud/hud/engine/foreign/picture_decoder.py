"""Decoders of classes with pictures: `transformers`' own towers, positions and state, one sequence at a time.

The class computes its own features, multimodal rotary positions and masks from what its processor returns. A prompt is computed
at once, so that no picture is cut.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hud.engine.config import DecoderConfig
from hud.engine.foreign.state_decoder import StateDecoder
from hud.engine.foreign.verdicts import ForeignPath
from hud.engine.models.attention import chosen
from hud.engine.models.routing import routed_part
from hud.engine.pictures.processor import PictureProcessor
from hud.errors import UsageError
from hud.trace.sampled.pictures import Picture

_KINDS = ("mm_token_type_ids", "token_type_ids")
"""Arguments of classes that are given the kind of each token: 0 for text, 1 for a picture."""


@dataclass
class _State:
    """A sequence so far."""

    ids: list[int] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    cache: Any = None
    """The model's own state after `ids`; None: computed from `ids` again."""
    experts: Tensor | None = None
    """(T, routers, k): router choices of `ids`, where they are kept."""
    positions: Tensor | None = None
    """Multimodal rotary positions of `ids`, as the class takes them, the last dimension that of tokens."""


class PictureDecoder(StateDecoder):
    """A `transformers` model with a vision tower, one sequence at a time."""

    whole_prompts: ClassVar[bool] = True

    def __init__(
        self,
        config: DecoderConfig,
        causal: Any,
        path: ForeignPath,
        processor: PictureProcessor | None,
    ) -> None:
        """`path`: what the model's own state can continue; `processor` makes its inputs of pictures, None: for text alone."""
        super().__init__(config, causal, path)
        self.processor = processor
        self.picture_tokens = frozenset({causal.config.image_token_id})
        self.tower_modules = tower_modules(causal)
        arguments = inspect.signature(type(self._layers[0]).forward).parameters
        self._kinds = next((name for name in _KINDS if name in arguments), None)
        rope = self._rope
        self._rope_arguments = set() if rope is None else set(inspect.signature(rope).parameters)

    def find_layers(self, causal: Any) -> nn.Module:
        """Return the module that turns tokens and pictures into last hidden states. Raises `UsageError` without one."""
        layers = causal.base_model
        if (
            layers is causal
            or "pixel_values" not in inspect.signature(type(layers).forward).parameters
        ):
            raise UsageError(
                f"{type(causal).__name__} has no layers with pictures apart from its head."
            )
        assert isinstance(layers, nn.Module)
        return layers

    def hidden_with_pictures(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor,
        pictures: Sequence[Sequence[Picture]],
        rows: Tensor | None = None,
    ) -> Tensor:
        bounds = cu_seqlens.tolist()
        parts = []
        for (start, end), shown in zip(pairwise(bounds), pictures, strict=True):
            with routed_part(start, end):
                state = _State(input_ids[start:end].tolist(), list(shown))
                parts.append(self._computed(state, 0, cached=False))
        return chosen(rows, torch.cat(parts))

    def _advanced(
        self, state: Any, ids: Sequence[int], pictures: Sequence[Picture]
    ) -> tuple[Any, Tensor]:
        state = state or _State()
        before = len(state.ids)
        state.ids += ids
        state.pictures += pictures
        if self.path == "recomputed" or (self.path == "turns" and len(ids) > 1):
            before, state.cache = 0, None
        hidden = self._computed(state, before, cached=self.path != "recomputed")
        return state, hidden[-1]

    def _computed(self, state: _State, since: int, *, cached: bool) -> Tensor:
        """Return the last hidden states (T, H) of the tokens from `since` on; `cached`: bring the state to their end."""
        ids = torch.tensor(state.ids, device=self.device)
        new = [picture for picture in state.pictures if picture.start >= since]
        inputs = self._inputs(ids[since:], new)
        if state.pictures and self._rope is not None:
            # The class remembers an offset of the sequence that it computed last; here it is given the positions.
            inputs["position_ids"] = self._positions(state, since, ids, inputs)
        hidden, state.cache = self._run(
            ids[since:], {**(state.cache or {}), **inputs}, cached=cached
        )
        return hidden

    def _positions(self, state: _State, since: int, ids: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the rotary positions of the tokens from `since` on, where there are pictures."""
        before = state.positions
        if before is not None and state.pictures[-1].start < since:
            # Text after the last picture counts on.
            first = int(before.max()) + 1
            following = torch.arange(first, first + len(ids) - since, device=self.device)
            new = following.expand(*before.shape[:-1], -1)
            state.positions = torch.cat((before[..., :since], new), -1)
            return new
        everything = inputs if since == 0 else self._inputs(ids, state.pictures)
        accepted = {name: everything[name] for name in everything.keys() & self._rope_arguments}
        state.positions, _ = self._rope(input_ids=ids[None], **accepted)
        assert state.positions is not None
        return state.positions[..., since:]

    def _inputs(self, ids: Tensor, pictures: Sequence[Picture]) -> dict[str, Any]:
        """Return the class's arguments for some tokens (T,) and the pictures among them."""
        if not pictures:
            return {}
        values = pixel_values(self.processor, pictures)
        inputs: dict[str, Any] = {
            name: value.to(self.device, self.dtype if value.is_floating_point() else None)
            for name, value in values.items()
        }
        if self._kinds is not None:
            (token,) = self.picture_tokens
            inputs[self._kinds] = (ids == token).long()[None]
        return inputs

    @property
    def _rope(self) -> Any:
        """The class's function for the rotary positions of a sequence; None: pictures have those of text."""
        return getattr(self._layers[0], "get_rope_index", None)


def pixel_values(
    processor: PictureProcessor | None, pictures: Sequence[Picture]
) -> dict[str, Tensor]:
    """Return the inputs that a processor makes of pictures. Raises `UsageError` without one, and for pixels that have changed."""
    if processor is None:
        raise UsageError("The model's folder has no picture processor; it is used for text alone.")
    files = [picture.file for picture in pictures]
    for picture, file in zip(pictures, files, strict=True):
        if processor.processed(file).pixels != picture.pixels:
            raise UsageError(
                f"The picture at token {picture.start} was sampled with other pixels than the model's processor makes of "
                "it now: its settings, Pillow or transformers have changed. Leave its run out."
            )
    return processor.values(files)


def tower_modules(causal: Any) -> tuple[str, ...]:
    """Return the names, as in a decoder, of the modules beside the text model: towers and their projections."""
    names = {module: name for name, module in causal.named_modules()}
    text, layers = names[causal.get_decoder()], names[causal.base_model]
    siblings = [name for name, _ in causal.base_model.named_children()]
    return tuple(f"causal.{layers}.{name}" for name in siblings if f"{layers}.{name}" != text)
