"""Train on our tasks with Tinker, the service of Thinking Machines or `hud up`: `pip install openhud[train] tinker`.

    model = TinkerModel(sampler, folder)                            # a sampling client as a model of agents
    job = await tasks.run(ToolLoopAgent(model), group=8)
    client.forward_backward(datums_of(job.runs), "importance_sampling")

Environments, rollouts, rewards and records are here; weights, gradients and sampling are the service's. Needs the tokenizer and
the chat template of the model in a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import PolicyChatModel
from hud.engine.sample.request import SampledTurn, room_after
from hud.engine.tinker.sampler import service_params
from hud.learning.datums import Datum, make_batch
from hud.learning.wire_types import AdvantageOptions, TrajectoryPayload
from hud.train.inputs import training_inputs

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.trace import SamplingParams

GATHER_SECONDS = 0.01
"""Time for which a turn waits for equal ones, in seconds."""

__all__ = ["TinkerModel", "datum_of", "datums_of"]


class TinkerModel(PolicyChatModel):
    """A sampling client of Tinker as a `ChatModel`: agents play with it, and their runs carry its tokens."""

    def __init__(self, sampler: Any, folder: Path | str, *, name: str = "tinker") -> None:
        """`sampler`: a `tinker.SamplingClient`. `folder`: tokenizer, chat template and config.json of its model."""
        place = Path(folder)
        config = DecoderConfig.from_folder(place)
        super().__init__(name, ServicePolicy(sampler, ChatFormat(place, config), config))


class ServicePolicy:
    """Weights behind a sampling client, with the chat format of their folder.

    Turns that ask the same within `GATHER_SECONDS`, as the first ones of a group do, are samples of one request: the service
    then computes their prompt once.
    """

    def __init__(self, sampler: Any, chat: ChatFormat, config: DecoderConfig) -> None:
        self.sampler, self.chat, self.config = sampler, chat, config
        self._gathering: dict[Hashable, list[asyncio.Future[SampledTurn]]] = {}
        """Turns that wait for others, by prompt and parameters."""
        self._asking: set[asyncio.Task[None]] = set()

    async def sample(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        stopped: Callable[[list[int]], bool] | None = None,
    ) -> SampledTurn:
        """Sample one turn. Raises `ContextOverflow` for a prompt that leaves no room."""
        config = self.config
        room = room_after(prompt, config.vocab_size, config.max_position_embeddings, "the model")
        most = params.most_tokens(room)
        sampling = service_params(params, most, self.chat.stop_ids, self.chat)
        if params.seed is not None:  # Samples of one request have different seeds.
            (only,) = await self._ask(prompt, sampling, 1)
            return only
        turn: asyncio.Future[SampledTurn] = asyncio.get_running_loop().create_future()
        key = (tuple(prompt), sampling.model_dump_json())
        if key in self._gathering:
            self._gathering[key].append(turn)
        else:
            self._gathering[key] = [turn]
            asking = asyncio.create_task(self._gathered(key, prompt, sampling))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        return await turn

    async def _gathered(self, key: Hashable, prompt: list[int], sampling: Any) -> None:
        """Ask once for the turns of `key`, after `GATHER_SECONDS`, and resolve them."""
        await asyncio.sleep(GATHER_SECONDS)
        turns = [turn for turn in self._gathering.pop(key) if not turn.done()]
        try:
            sampled = await self._ask(prompt, sampling, len(turns)) if turns else []
            for turn, one in zip(turns, sampled, strict=True):
                if not turn.done():
                    turn.set_result(one)
        except Exception as error:
            for turn in turns:
                if not turn.done():
                    turn.set_exception(error)
        finally:
            for turn in turns:
                turn.cancel()  # Without effect on a resolved one.

    async def _ask(self, prompt: list[int], sampling: Any, number: int) -> list[SampledTurn]:
        """Return that many turns after a prompt, by one request."""
        from tinker import types

        done = await self.sampler.sample(types.ModelInput.from_ints(prompt), number, sampling)
        cached = done.prompt_cache_hit_tokens or 0
        return [
            SampledTurn(list(one.tokens), list(one.logprobs), one.stop_reason, cached, None)
            for one in done.sequences
        ]


def datums_of(
    runs: Sequence[Run],
    *,
    advantages: AdvantageOptions | None = None,
    reward_scale: float = 1.0,
    token_mean: bool = False,
) -> list[Any]:
    """Return runs as `tinker.Datum`s with the advantages of their groups; groups without signal give none.

    `token_mean`: divide the advantages by the number of sampled tokens, so that Tinker's sums become means.
    """
    batch = training_inputs(runs)
    made = make_batch(
        [one for one in batch.inputs if isinstance(one, TrajectoryPayload)],
        group_ids=batch.group_ids,
        options=advantages,
        reward_scale=reward_scale,
    )
    actions = sum(datum.actions for datum in made.datums)
    scale = 1.0 / actions if token_mean and actions else 1.0
    return [datum_of(datum, scale) for datum in made.datums]


def datum_of(datum: Datum, scale: float = 1.0) -> Any:
    """Return a datum of ours as Tinker's, whose position i predicts token i + 1, with its advantages times `scale`."""
    from tinker import types

    return types.Datum(
        model_input=types.ModelInput.from_ints(datum.tokens[:-1].tolist()),
        loss_fn_inputs={
            "target_tokens": datum.tokens[1:],
            "logprobs": datum.logprobs[1:],
            "advantages": (datum.advantages[1:] * np.float32(scale)),
        },
    )
