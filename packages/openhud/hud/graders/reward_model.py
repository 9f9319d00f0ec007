"""A reward model of the platform as grader: the probability with which it calls an answer good."""

from __future__ import annotations

import math
from typing import Any

import httpx

from hud import settings
from hud.errors import GraderFault
from hud.graders.grader import Grader
from hud.graders.judge import REFUSES_CONTENT


class RewardModelGrader(Grader):
    """Grader by a model that was trained from pairs (`hud train --loss bradley_terry`), on a platform's server."""

    name = "reward_model"

    async def compute_score(  # type: ignore[override]
        self,
        *,
        answer: str,
        model: str,
        question: str = "",
        base_url: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
    ) -> tuple[float, dict[str, Any]]:
        """Return σ(r) of the model's reward r, in nats, for the answer to the question; `info` has r.

        Only differences of rewards of one question have a meaning. An answer that the model cannot read, such as one longer than its
        context, scores 0. Raises `GraderFault` if the model cannot be reached, or rates an empty answer neither.
        """
        now = settings.load()
        url = base_url or now.api_url
        if url is None:
            raise GraderFault(
                "RewardModelGrader has no platform: give base_url, or set HUD_API_URL; --judge needs neither."
            )
        key = api_key or now.api_key
        headers = {"authorization": f"Bearer {key}"} if key else None
        async with httpx.AsyncClient(timeout=timeout_seconds, headers=headers) as client:
            path = f"{url.rstrip('/')}/v2/models/{model}/rewards"
            reward = await _reward(client, path, question, str(answer))
            if isinstance(reward, str):
                control = await _reward(client, path, question, "")
                if isinstance(control, str):
                    raise GraderFault(f"The reward model {model!r} rates nothing: {control}.")
                return 0.0, {"model": model, "reason": reward}
        return 1 / (1 + math.exp(-max(reward, -700.0))), {"model": model, "reward": reward}


async def _reward(client: httpx.AsyncClient, url: str, question: str, answer: str) -> float | str:
    """Return the reward of an answer, or the reason why it has none. Raises `GraderFault` if the platform refuses the sender."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    try:
        reply = await client.post(url, json={"conversations": [{"messages": messages}]})
        if reply.status_code in REFUSES_CONTENT:
            return reply.text[:200]
        reply.raise_for_status()
        reward = float(reply.json()["rewards"][0])
    except UnicodeEncodeError:
        return "it is no valid Unicode"
    except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
        raise GraderFault(f"The reward model at {url} could not be asked: {error}.") from error
    return reward if math.isfinite(reward) else f"its reward is {reward}"
