"""`InspectEnvironment`: the samples of an Inspect task as tasks, graded by its own scorers."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from hud.environment import Environment, Task
from hud.errors import GraderFault, UsageError
from hud.exchange.left_out import LeftOut
from hud.graders import EvaluationResult, SubScore
from hud.trace import Message

_LOST = ("setup", "sandbox", "files", "choices", "checkpoint")
"""Fields without which a sample is another task."""


class InspectEnvironment(Environment):
    """An Inspect task: template `sample`, whose prompt is a sample's input and whose reward is the scorers' mean.

    Scorers are executed in the environment's process: a child, with `hud eval` and a Python file.
    """

    def __init__(self, task: Any, *, name: str | None = None) -> None:
        """`task` is an `inspect_ai.Task`. Raises `UsageError` for one without scorers, or without a sample to play."""
        super().__init__(name or str(task.name).rpartition("/")[2])
        self.source_file = sys._getframe(1).f_code.co_filename
        self._scorers: list[Any] = list(task.scorer or ())
        if not self._scorers:
            raise UsageError(f"The Inspect task {self.name!r} has no scorer.")
        self.left_out: list[LeftOut] = []
        """Samples, and parts of the task, that were not carried over."""
        self._samples: dict[str, Any] = {}
        for place, sample in enumerate(task.dataset, 1):
            identifier = str(sample.id if sample.id is not None else place)
            problem = _problem(sample)
            if problem is None:
                self._samples[identifier] = sample
            else:
                self.left_out.append(LeftOut(identifier, problem, is_task=True))
        self.left_out += [LeftOut(self.name, part) for part in _parts(task)]
        if not self._samples:
            raise UsageError(f"The Inspect task {self.name!r} has no sample that can be played.")
        self.template(id="sample")(self._episode())

    def all_tasks(self) -> list[Task]:
        """Return a task for each sample, with the sample's id as its slug."""
        tasks = []
        for identifier in self._samples:
            task = self.templates["sample"](id=identifier)
            task.slug = identifier
            tasks.append(task)
        return tasks

    def _episode(self) -> Any:
        async def sample(id: str) -> AsyncGenerator[Any, Any]:
            """Answer a sample."""
            if id not in self._samples:
                raise UsageError(f"There is no sample {id!r} in {self.name!r}.")
            answer = yield _prompt(self._samples[id])
            yield await self._graded(self._samples[id], id, str(answer))

        return sample

    async def _graded(self, sample: Any, identifier: str, answer: str) -> EvaluationResult:
        from inspect_ai.scorer import Target
        from inspect_ai.scorer._metric import value_to_float

        value = value_to_float()
        subscores, explanations = [], []
        for scorer in self._scorers:
            name = _name(scorer)
            score = await scorer(_state(sample, identifier, answer), Target(sample.target))
            if score is None:
                raise GraderFault(f"The scorer {name!r} gave no score for sample {identifier!r}.")
            parts = score.value if isinstance(score.value, dict) else {name: score.value}
            for part, part_score in parts.items():
                # Scales of Inspect have no bounds; ours are from 0 to 1, and others fail the run.
                subscores.append(SubScore(name=part, value=float(value(part_score))))
            explanations += [score.explanation] if score.explanation else []
        mean = sum(subscore.value for subscore in subscores) / len(subscores)
        return EvaluationResult(
            reward=mean,
            content="\n".join(explanations) or None,
            subscores=subscores if len(subscores) > 1 else None,
        )


def _state(sample: Any, identifier: str, answer: str) -> Any:
    """Return the state after a conversation of one answer, as Inspect's scorers take it."""
    from inspect_ai.model import ChatMessageUser, ModelName, ModelOutput
    from inspect_ai.scorer import Target
    from inspect_ai.solver import TaskState

    sample_input = sample.input
    messages = (
        [ChatMessageUser(content=sample_input)]
        if isinstance(sample_input, str)
        else list(sample_input)
    )
    output = ModelOutput.from_content("openhud/agent", answer)
    return TaskState(
        model=ModelName("openhud/agent"),
        sample_id=identifier,
        epoch=1,
        input=sample_input,
        messages=[*messages, output.message],
        target=Target(sample.target),
        output=output,
        completed=True,
        metadata=dict(sample.metadata or {}),
    )


def _prompt(sample: Any) -> list[Message]:
    if isinstance(sample.input, str):
        return [Message(content=sample.input)]
    return [Message(role=message.role, content=message.text) for message in sample.input]


def _problem(sample: Any) -> str | None:
    """Return the reason why a sample cannot be played here, or None."""
    has = [name for name in _LOST if getattr(sample, name, None)]
    if has:
        return f"it has {', '.join(has)}"
    messages: Sequence[Any] = () if isinstance(sample.input, str) else sample.input
    if any(message.role == "tool" for message in messages):
        return "its input has calls of tools"
    if any(part.type != "text" for message in messages if not isinstance(message.content, str) for part in message.content):  # fmt: skip
        return "its input has more than text"
    return None


def _parts(task: Any) -> list[str]:
    """Return the names of the task's own parts that have no counterpart."""
    parts = [name for name in ("setup", "sandbox", "cleanup") if getattr(task, name, None)]
    solver = _name(task.solver)
    if solver != "generate":
        parts.append(f"solver {solver}")
    return parts


def _name(registered: Any) -> str:
    """Return the name of a scorer or a solver, without its package."""
    from inspect_ai._util.registry import is_registry_object, registry_info

    if is_registry_object(registered):
        return str(registry_info(registered).name).rpartition("/")[2]
    return type(registered).__name__ if not hasattr(registered, "__name__") else registered.__name__
