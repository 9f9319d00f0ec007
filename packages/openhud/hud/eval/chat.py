"""`Chat`: a conversation with an agent; each turn is a rollout of a task with the argument `messages`.

chat = Chat(assistant(messages=[]), create_agent("my-model"))
print((await chat.send("Book me a flight")).content)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hud.agents.agent_forms import as_agent
from hud.environment.templates.task import Player, Provider
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.rollouts import rollout
from hud.trace import Trace
from hud.trace.recording.recorder import Recorder

if TYPE_CHECKING:
    from hud.environment import Task


class Chat:
    """A conversation that plays `task` for each message, with the conversation so far as its argument `messages`.

    `messages` is the conversation, as chat messages: store and set it to continue later. All turns belong to one job.
    """

    def __init__(
        self,
        task: Task,
        agent: Player,
        /,
        *,
        runtime: Provider | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.task = task
        self.agent = as_agent(agent)
        self.runtime = runtime
        self.recorder = recorder
        self.messages: list[dict[str, Any]] = []
        self.job: Job | None = None

    async def send(self, message: str | Sequence[Any]) -> Trace:
        """Send `message` (text, or content blocks) and return the trace; its `content` is the reply.

        Raises `UsageError` for a turn without a reply; the conversation then stays unchanged.
        """
        user_message = {"role": "user", "content": _plain(message)}
        task = self.task.model_copy(
            update={"args": {**self.task.args, "messages": [*self.messages, user_message]}}
        )
        if self.job is None:
            self.job = await Job.start(self.task.slug or self.task.id, recorder=self.recorder)
        run = await rollout(
            task,
            self.agent,
            runtime=self.runtime,
            job_id=self.job.id,
            recorder=self.job.recorder,
        )
        self.job.runs.append(run)
        if run.failure_kind == "agent" or run.trace.content is None:
            raise UsageError(
                f"The turn of {self.task.slug!r} has no reply: {run.error or 'no answer'}"
            )
        self.messages += [user_message, {"role": "assistant", "content": run.trace.content}]
        return run.trace


def _plain(message: str | Sequence[Any]) -> str | list[Any]:
    if isinstance(message, str):
        return message
    return [
        block.model_dump(mode="json", by_alias=True) if isinstance(block, BaseModel) else block
        for block in message
    ]
