"""Qwen3.5 with its vision tower, natively: features of pictures take the place of their tokens' embeddings.

Positions of rotary embeddings are the class's multimodal ones; caches and packed passes are those of `HybridDecoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.decoder import AttentionCache
from hud.engine.foreign.hybrid_decoder import HybridDecoder
from hud.engine.foreign.picture_decoder import pixel_values, tower_modules
from hud.engine.foreign.transformers_decoder import Inputs
from hud.engine.pictures.processor import PictureProcessor
from hud.trace.sampled.pictures import Picture


class PicturePrompt:
    """A prompt with pictures in a sampler."""

    def __init__(
        self, decoder: HybridPictureDecoder, ids: Sequence[int], pictures: Sequence[Picture]
    ) -> None:
        self.pictures = pictures
        self._decoder = decoder
        self._positions = decoder.rotary_positions(torch.tensor(ids), pictures)
        self._features: dict[int, Tensor] = {}

    def positions(self, places: Tensor) -> Tensor:
        """Return the rotary positions (3, N) of the tokens at `places` (N,); those behind the prompt count on."""
        length = self._positions.shape[1]
        after = places - length + self._positions.max() + 1
        within = self._positions.index_select(1, places.clamp_max(length - 1))
        return torch.where(places < length, within, after)

    def features(self, number: int) -> Tensor:
        """Return the features (tokens, H) of a picture."""
        if number not in self._features:
            self._features[number] = self._decoder.features([self.pictures[number]])
        return self._features[number]


class HybridPictureDecoder(HybridDecoder):
    """A `transformers` model of a vision tower, attention and gated delta rule layers behind the port of decoders."""

    def __init__(
        self, config: DecoderConfig, causal: Any, processor: PictureProcessor | None
    ) -> None:
        """`processor` makes the inputs of pictures; None: the model is used for text alone."""
        super().__init__(config, causal)
        self.processor = processor
        self.picture_tokens = frozenset({causal.config.image_token_id})
        self.tower_modules = tower_modules(causal)

    def hidden_with_pictures(
        self,
        input_ids: Tensor,
        cu_seqlens: Tensor,
        pictures: Sequence[Sequence[Picture]],
        rows: Tensor | None = None,
    ) -> Tensor:
        bounds = list(pairwise(cu_seqlens.tolist()))
        positions, rotary, places = [], [], []
        for (start, end), shown in zip(bounds, pictures, strict=True):
            positions.append(torch.arange(end - start, device=self.device))
            rotary.append(self.rotary_positions(input_ids[start:end], shown))
            for picture in shown:
                first = start + picture.start
                places.append(torch.arange(first, first + picture.tokens, device=self.device))
        embedded = self._embedded(input_ids)
        everything = [picture for shown in pictures for picture in shown]
        if everything:
            features = self.features(everything)
            embedded = embedded.index_copy(0, torch.cat(places), features)
        inputs = _inputs(embedded, torch.cat(positions), torch.cat(rotary, 1))
        return self.packed(inputs, cu_seqlens, rows=rows)

    def picture_prompt(self, ids: Sequence[int], pictures: Sequence[Picture]) -> PicturePrompt:
        """Return a prompt to sample after, for `hidden_cached_with_pictures`."""
        return PicturePrompt(self, ids, pictures)

    def hidden_cached_with_pictures(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cache: AttentionCache,
        prompts: Sequence[PicturePrompt | None],
    ) -> Tensor:
        """Return what `hidden_cached` returns, for as many tokens of each row; `prompts`: each row's, or None without pictures."""
        embedded = self._embedded(input_ids)
        rotary = positions.expand(3, -1).clone()
        width = len(input_ids) // len(prompts)
        for row, prompt in enumerate(prompts):
            if prompt is None:
                continue
            own = slice(row * width, (row + 1) * width)
            rotary[:, own] = prompt.positions(positions[own])
            first = int(positions[own.start])
            for number, picture in enumerate(prompt.pictures):
                begin, end = picture.start, picture.start + picture.tokens
                low, high = max(begin, first), min(end, first + width)
                if low < high:
                    features = prompt.features(number)[low - begin : high - begin]
                    embedded[own.start + low - first : own.start + high - first] = features
        return self.cached(_inputs(embedded, positions, rotary), cache)

    def rotary_positions(self, ids: Tensor, pictures: Sequence[Picture]) -> Tensor:
        """Return the multimodal rotary positions (3, T) of a sequence (T,)."""
        if not pictures:
            return torch.arange(len(ids), device=self.device).expand(3, -1)
        values = self._values(pictures)
        ids = ids.to(self.device)
        (token,) = self.picture_tokens
        kinds = (ids == token).long()[None]
        positions, _ = self.causal.base_model.get_rope_index(
            ids[None], kinds, image_grid_thw=values["image_grid_thw"]
        )
        result: Tensor = positions[:, 0]
        return result

    def features(self, pictures: Sequence[Picture]) -> Tensor:
        """Return the features (picture tokens, H) of pictures, one after the other."""
        values = self._values(pictures)
        output = self.causal.base_model.get_image_features(
            values["pixel_values"], values["image_grid_thw"], return_dict=True
        )
        return torch.cat(tuple(output.pooler_output)).to(self.dtype)

    def _values(self, pictures: Sequence[Picture]) -> dict[str, Tensor]:
        # One by one, as the processor keeps them by picture.
        values = [pixel_values(self.processor, [picture]) for picture in pictures]
        return {
            name: torch.cat([part[name] for part in values]).to(self.device) for name in values[0]
        }

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.causal.get_input_embeddings()(ids)
        return embedded


def _inputs(embedded: Tensor, positions: Tensor, rotary: Tensor) -> Inputs:
    """Return the text model's arguments: positions for masks (T,), and rotary ones (3, T)."""
    return {
        "inputs_embeds": embedded[None],
        "position_ids": torch.cat((positions[None], rotary))[:, None],
    }
