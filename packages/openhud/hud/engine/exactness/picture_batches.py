"""The batches of the check with pictures: whole sequences, their gradient, and turns that bring pictures, compared with plain `transformers`."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.exactness.batches import (
    CACHE_BYTES,
    compare,
    compare_gradients,
    move,
    sequences,
)
from hud.engine.pictures.processor import PictureProcessor
from hud.engine.sample.request import SampledTurn
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture

SIZES = ((45, 70), (64, 40), (33, 33), (50, 90))
"""Height and width of the pictures, in pixels; a processor may enlarge them."""
TURN_TOKENS = 6


class Prompt:
    """Random tokens with pictures among them."""

    def __init__(self, ids: list[int], pictures: tuple[Picture, ...]) -> None:
        self.ids, self.pictures = ids, pictures


class PictureChecks:
    """Batches with pictures for one decoder; prompts are made once."""

    def __init__(self, decoder: Decoder, processor: PictureProcessor) -> None:
        self._processor = processor
        (self._token,) = decoder.picture_tokens
        vocabulary = decoder.config.vocab_size
        self._words = [
            [token for token in ids.tolist() if token != self._token]
            for ids in sequences(vocabulary, (9, 21, 7, 14, 11, 8), seed=7)
        ]
        words, files = self._words, [_file(place) for place in range(len(SIZES))]
        self._prompts = [
            self._prompt([words[0], files[0], words[1]]),
            self._prompt([words[2], files[1], words[3], files[2], words[4]]),
            self._prompt([words[0], files[3], words[1]]),
            self._prompt([words[1], words[2]]),
        ]
        self._files = files

    def check_packing(self, decoder: Decoder, plain: Any) -> None:
        """Compare sequences with one picture, two and none."""
        with torch.no_grad():
            theirs = torch.cat([self._plain(plain, prompt) for prompt in self._prompts])
            compare("pictures", _ours(decoder, self._prompts), theirs)

    def check_gradient(self, decoder: Decoder, plain: Any) -> None:
        """Compare the gradient of two sequences, that of the tower included."""
        prompts = self._prompts[:2]
        decoder.requires_grad_(True)
        plain.requires_grad_(True)
        theirs = torch.cat([self._plain(plain, prompt) for prompt in prompts])
        compare_gradients(decoder, plain, _ours(decoder, prompts), theirs)

    def check_cache(self, decoder: Decoder, plain: Any) -> None:
        """Compare sampled turns: a batch, second turns that bring text or a picture, and the first again after a swap of weights."""
        sampler = Sampler(decoder, slots=4, cache_bytes=CACHE_BYTES)
        try:
            first = asyncio.run(_sampled(sampler, self._prompts))
            self._check_turns(plain, self._prompts, first)
            second = []
            for place, (prompt, turn) in enumerate(zip(self._prompts, first, strict=True)):
                parts: list[list[int] | bytes] = [
                    [token for token in turn.token_ids if token != self._token],
                    self._words[5],
                ]
                if place % 2:
                    parts += [self._files[0], self._words[2]]
                second.append(self._prompt(parts, after=prompt))
            self._check_turns(plain, second, asyncio.run(_sampled(sampler, second)))
            with sampler.exclusive():
                move(decoder, plain)
            sampler.set_version("moved")
            again = asyncio.run(_sampled(sampler, self._prompts))
            self._check_turns(plain, self._prompts, again)
        finally:
            sampler.close()

    def _prompt(self, parts: Sequence[list[int] | bytes], after: Prompt | None = None) -> Prompt:
        """Return tokens and pictures, one part after the other."""
        ids = list(after.ids) if after else []
        pictures = list(after.pictures) if after else []
        for part in parts:
            if isinstance(part, list):
                ids += part
                continue
            made = self._processor.processed(part)
            data = base64.b64encode(part).decode()
            pictures.append(
                Picture(
                    start=len(ids),
                    tokens=made.tokens,
                    sha256=made.sha256,
                    pixels=made.pixels,
                    data=data,
                )
            )
            ids += [self._token] * made.tokens
        return Prompt(ids, tuple(pictures))

    def _plain(self, plain: Any, prompt: Prompt, ids: list[int] | None = None) -> Tensor:
        """Return the logprobs (T, V) of one sequence by plain `transformers`, without a cache."""
        tokens = torch.tensor(ids or prompt.ids)[None]
        inputs: dict[str, Any] = {}
        if prompt.pictures:
            inputs = dict(self._processor.values([picture.file for picture in prompt.pictures]))
            kinds = (tokens == self._token).long()
            # Classes take one of them, or ignore it.
            inputs |= {"mm_token_type_ids": kinds, "token_type_ids": kinds}
        accepted = _accepted(plain, inputs)
        logits: Tensor = plain(input_ids=tokens, use_cache=False, **accepted).logits[0]
        return logits.float().log_softmax(-1)

    def _check_turns(
        self, plain: Any, prompts: Sequence[Prompt], turns: Sequence[SampledTurn]
    ) -> None:
        for prompt, turn in zip(prompts, turns, strict=True):
            # A picture token ends a turn; it is sampled, and never computed.
            with torch.no_grad():
                theirs = self._plain(plain, prompt, prompt.ids + turn.token_ids[:-1])
            ids = torch.tensor(turn.token_ids)
            theirs = theirs[len(prompt.ids) - 1 :].gather(-1, ids[:, None]).squeeze(-1)
            compare("pictures", torch.tensor(turn.logprobs), theirs)


def _accepted(plain: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    names = inspect.signature(type(plain).forward).parameters
    return {name: value for name, value in inputs.items() if name in names}


def _ours(decoder: Decoder, prompts: Sequence[Prompt]) -> Tensor:
    """Return the logprobs of sequences in one pass."""
    bounds = torch.tensor([0, *(len(prompt.ids) for prompt in prompts)]).cumsum(0)
    ids = torch.tensor([token for prompt in prompts for token in prompt.ids])
    hidden = decoder.hidden_with_pictures(ids, bounds, [prompt.pictures for prompt in prompts])
    return decoder.logits(hidden).float().log_softmax(-1)


async def _sampled(sampler: Sampler, prompts: Sequence[Prompt]) -> list[SampledTurn]:
    return await asyncio.gather(
        *(
            sampler.sample(
                prompt.ids,
                SamplingParams(max_tokens=TURN_TOKENS, seed=seed),
                frozenset(),
                prompt.pictures,
            )
            for seed, prompt in enumerate(prompts)
        )
    )


def _file(place: int) -> bytes:
    """Return the file of a random picture."""
    pixels = np.random.default_rng(place).integers(0, 256, (*SIZES[place], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
