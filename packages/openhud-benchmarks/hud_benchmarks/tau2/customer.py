"""The customer of a conversation: a model that plays the package's scenario (`HUD_USER_MODEL`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud import settings
from hud.errors import UsageError
from hud.inference.model_listing import only_model
from hud.inference.models import chat_model
from hud.inference.served_model import OpenAIChatModel
from hud.trace import ChatMessage, ChatModel, SamplingParams
from hud_benchmarks.tau2.data import text

ENDINGS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Marks with which the scenario's guidelines end a conversation."""
OVER = "The customer has ended the conversation."
MISSING = (
    "This task needs a model that plays the customer: set HUD_USER_MODEL to the slug of a model, or to the address of "
    "a server of chat completions with one model (http://host/v1)."
)


class Customer:
    """One conversation, from the customer's side: what the agent says is the user's turn, and the other way round."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.over = False
        self._messages: list[ChatMessage] = [
            {"role": "system", "content": _instructions(task["user_scenario"])}
        ]
        self._model: ChatModel | None = None

    async def answer(self, message: str) -> str:
        """Return the customer's answer to a message. Raises `UsageError` where no model plays customers."""
        if self.over:
            return OVER
        if self._model is None:
            self._model = await customer_model()
        self._messages.append({"role": "user", "content": message})
        turn = await self._model.complete(self._messages, [], SamplingParams(temperature=0.0))
        reply = turn.content or ""
        self._messages.append({"role": "assistant", "content": reply})
        for mark in ENDINGS:
            if mark in reply:
                self.over = True
                reply = reply.replace(mark, "").strip()
        return f"{reply}\n\n{OVER}".strip() if self.over else reply

    async def aclose(self) -> None:
        """Close the connections of the model."""
        if self._model is not None:
            await self._model.aclose()


async def customer_model() -> ChatModel:
    """Return the model that plays customers; raises `UsageError` where none is set."""
    current = settings.load()
    named = current.user_model
    if not named:
        raise UsageError(MISSING)
    if named.startswith(("http://", "https://")):
        name = only_model(named, current.api_key)
        return OpenAIChatModel(name, base_url=named, api_key=current.api_key)
    return await chat_model(named)


def _instructions(scenario: Mapping[str, Any]) -> str:
    parts = [text("user_simulator/simulation_guidelines.txt"), "<scenario>"]
    if scenario.get("persona"):
        parts.append(f"Persona: {scenario['persona']}")
    parts += [
        f"{name.replace('_', ' ').capitalize()}: {value}"
        for name, value in scenario["instructions"].items()
        if value
    ]
    return "\n\n".join([*parts, "</scenario>"])
