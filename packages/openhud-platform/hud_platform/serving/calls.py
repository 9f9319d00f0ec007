"""Table of the engine's calls: those of training sessions, and those of the platform itself.
The type of a request identifies its call. In this process, `answer` runs the implementation; for an engine in another
process, a frame holds the call's name and the request as JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from hud.client.contributor import Contributor
from hud.learning import datum_calls as datums
from hud.learning import training_calls as training
from hud.learning.training_calls import Call
from hud_platform.models.head_decision import HeadDecision
from hud_platform.models.records import ModelRecord

if TYPE_CHECKING:
    from hud_platform.training.open_sessions import Session, Sessions

Q = TypeVar("Q", bound=BaseModel)
A = TypeVar("A")


class MoveHead(BaseModel):
    """Move a model's head, with the serving policy and the training session."""

    checkpoint: str | None
    """None: the base weights."""
    decision: HeadDecision | None = None
    """None: move it whatever the head is."""


class ExportModel(BaseModel):
    """Export a model at a checkpoint as a Hugging Face folder, or as a file of the format `form`."""

    checkpoint: str | None
    folder: str
    form: str = "hf"
    dtype: str | None = None


class ForgetModel(BaseModel):
    """Unload a model's policies and close its session."""


class ChangeServers(BaseModel):
    """Sample a model's loaded policy on other vLLM servers."""

    urls: tuple[str, ...]


@dataclass(frozen=True)
class EngineCall:
    """A call, with its implementation over the sessions of this process."""

    call: Call[Any, Any]
    run: Callable[[Sessions, ModelRecord, Any, Contributor], Awaitable[Any]]


def _of_model(
    call: Call[Q, A], run: Callable[[Sessions, ModelRecord, Q, Contributor], Awaitable[A]]
) -> EngineCall:
    return EngineCall(call, run)


def _in_session(
    call: Call[Q, A], run: Callable[[Session, Q, Contributor], Awaitable[A]]
) -> EngineCall:
    """Return a call that runs in the model's session and opens one if necessary."""

    async def opened(
        sessions: Sessions, model: ModelRecord, body: Q, client: Contributor
    ) -> object:
        return await run(await sessions.open(model), body, client)

    return EngineCall(call, opened)


async def _close(
    sessions: Sessions, model: ModelRecord, body: training.CloseRequest, client: Contributor
) -> training.ClosedSession:
    await sessions.close(model.id, client if body.alone else None)
    return training.ClosedSession()


async def _load(
    sessions: Sessions, model: ModelRecord, body: datums.LoadRequest, client: Contributor
) -> None:
    await sessions.set_head(model, body.checkpoint, client)
    session = await sessions.open(model)
    if not body.optimizer:
        await session.reset_optimizer()


async def _score(
    sessions: Sessions, model: ModelRecord, body: datums.ScoreRequest, _: Contributor
) -> datums.PromptScores:
    from hud_platform.serving.prompt_scores import score_prompt

    return await asyncio.to_thread(score_prompt, sessions.policies, model, body)


async def _rate(
    sessions: Sessions, model: ModelRecord, body: training.RateRequest, _: Contributor
) -> training.Rates:
    from hud_platform.training.verdicts import rate

    return await asyncio.to_thread(rate, sessions.policies, model, body)


async def _change_servers(
    sessions: Sessions, model: ModelRecord, body: ChangeServers, _: Contributor
) -> None:
    await asyncio.to_thread(sessions.policies.change_servers, model.id, body.urls)


async def _export(
    sessions: Sessions, model: ModelRecord, body: ExportModel, _: Contributor
) -> None:
    export = partial(sessions.policies.export, form=body.form, dtype=body.dtype)
    await asyncio.to_thread(export, model, body.checkpoint, Path(body.folder))


_CALLS = (
    _in_session(
        training.FORWARD_BACKWARD, lambda session, body, who: session.forward_backward(body, who)
    ),
    _in_session(training.LOSS, lambda session, body, who: session.loss(body, who)),
    _in_session(training.FORWARD, lambda session, body, who: session.forward(body, who)),
    _in_session(training.BACKWARD, lambda session, body, who: session.backward(body, who)),
    _in_session(training.OPTIM_STEP, lambda session, body, who: session.optim_step(body, who)),
    _in_session(training.OPEN, lambda session, body, who: session.begin(body, who)),
    _in_session(training.RENDER, lambda session, body, _: session.render(body)),
    _of_model(training.HOLD, lambda sessions, model, _, who: sessions.hold(model.id, who)),
    _of_model(training.DISCARD, lambda sessions, model, _, who: sessions.discard(model, who)),
    _of_model(training.CLOSE, _close),
    _of_model(
        Call("set-head", MoveHead, type(None)),
        lambda sessions, model, body, who: sessions.set_head(
            model, body.checkpoint, who, body.decision
        ),
    ),
    _in_session(datums.DATUM_PASS, lambda session, body, who: session.datum_pass(body, who)),
    _in_session(datums.DATUM_STEP, lambda session, body, who: session.datum_step(body, who)),
    _in_session(datums.SAVE, lambda session, _, __: session.save()),
    _of_model(datums.LOAD, _load),
    _of_model(datums.SCORE, _score),
    _of_model(training.RATE, _rate),
    _of_model(Call("export", ExportModel, type(None)), _export),
    _of_model(Call("change-servers", ChangeServers, type(None)), _change_servers),
    _of_model(
        Call("forget", ForgetModel, type(None)),
        lambda sessions, model, _body, _who: sessions.forget(model.id),
    ),
)
BY_NAME = {handler.call.name: handler for handler in _CALLS}
BY_REQUEST = {handler.call.request: handler for handler in _CALLS}


async def answer(
    sessions: Sessions, model: ModelRecord, body: BaseModel, client: Contributor
) -> bytes:
    """Return the result of a call as JSON. Raises the errors of its implementation."""
    return to_json(await BY_REQUEST[type(body)].run(sessions, model, body, client))
