"""`EvalLogFile`: a job's runs as a log of Inspect, `NAME.eval`, for its viewer and its `read_eval_log`.

A run is a sample; further runs of a task are its further epochs. Token ids and log-probabilities have no place in the format,
and pictures are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hud import __version__
from hud.trace.content import ToolCall
from hud.trace.steps import AgentStep, ToolStep, Trace, parse_trace


class EvalLogFile:
    """A log in the making: runs are added one by one, and `close` writes the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._samples: list[Any] = []
        self._epochs: Counter[str] = Counter()
        self._models: set[str] = set()

    def add(self, run: dict[str, Any], trace: dict[str, Any]) -> None:
        """Add a recorded run (`run` and `trace` as the platform returns them)."""
        from inspect_ai._util.error import EvalError
        from inspect_ai.log import EvalSample
        from inspect_ai.model import ModelOutput
        from inspect_ai.scorer import Score

        parsed = parse_trace(trace)
        self._epochs[run["slug"]] += 1
        self._models |= {run["model"]} - {None}
        messages = messages_of(parsed)
        task, grade = run["task"] or {}, run["grade"] or {}
        error = None
        if run["failure_kind"] is not None:
            problem = run["error"] or run["failure_kind"]
            error = EvalError(
                message=f"{run['failure_kind']}: {problem}", traceback="", traceback_ansi=""
            )
        score = None
        if run["reward"] is not None:
            score = {"reward": Score(value=run["reward"], explanation=grade.get("content"))}
        model = run["model"] or "none"
        self._samples.append(
            EvalSample(
                id=run["slug"],
                epoch=self._epochs[run["slug"]],
                input=next((message.text for message in messages if message.role == "user"), ""),
                target="",
                messages=messages,
                output=ModelOutput.from_content(model, run["content"] or ""),
                scores=score,
                metadata={
                    "trace_id": run["trace_id"],
                    "env": task.get("env"),
                    "args": task.get("args"),
                },
                model_usage=_usage(parsed, model),
                error=error,
            )
        )

    def close(self, job: Mapping[str, Any]) -> int:
        """Write the log of the job that the runs are from; returns the number of samples."""
        from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, write_eval_log

        scored = [sample.scores["reward"].value for sample in self._samples if sample.scores]
        spec = EvalSpec(
            created=str(job["created_at"]),
            eval_id=job["id"],
            run_id=job["id"],
            task=job["name"],
            task_id=job["id"],
            dataset=EvalDataset(
                name=job["name"], samples=len(self._epochs), sample_ids=list(self._epochs)
            ),
            model=", ".join(sorted(self._models)) or "none",
            config=EvalConfig(epochs=max(self._epochs.values(), default=1)),
            packages={"openhud": __version__},
        )
        log = EvalLog(
            status="success",
            eval=spec,
            results=_results(scored, len(self._samples)),
            samples=self._samples,
        )
        write_eval_log(log, self.path, format="eval")
        return len(self._samples)


def messages_of(trace: Trace) -> list[Any]:
    """Return the conversation of a run as Inspect's messages."""
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
    )

    kinds = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    messages: list[Any] = []
    announced: set[str] = set()
    for step in trace.steps:
        if step.source == "user":
            messages += [kinds[message.role](content=message.text) for message in step.messages]
        elif isinstance(step, AgentStep):
            announced = {call.id for call in step.tool_calls}
            calls = [_call(call) for call in step.tool_calls] or None
            messages.append(ChatMessageAssistant(content=step.content or "", tool_calls=calls, model=step.model))  # fmt: skip
        elif isinstance(step, ToolStep) and step.call is not None and step.result is not None:
            if step.call.id not in announced:  # A script calls tools without a turn of a model.
                messages.append(ChatMessageAssistant(content="", tool_calls=[_call(step.call)]))
            text, name = step.result.text, step.call.name
            messages.append(ChatMessageTool(content=text, tool_call_id=step.call.id, function=name))
    last_answer = next(
        (message.text for message in reversed(messages) if message.role == "assistant"), None
    )
    if trace.content and last_answer != trace.content:
        messages.append(ChatMessageAssistant(content=trace.content))
    return messages


def _call(call: ToolCall) -> Any:
    from inspect_ai.tool import ToolCall as InspectCall

    malformed = isinstance(call.arguments, str)
    return InspectCall(
        id=call.id,
        function=call.name,
        arguments={} if malformed else call.arguments,
        parse_error=f"no JSON object: {call.arguments}" if malformed else None,
    )


def _usage(trace: Trace, model: str) -> dict[str, Any]:
    from inspect_ai.model import ModelUsage

    usage = trace.usage
    if not usage.llm_call_count:
        return {}
    return {
        model: ModelUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            input_tokens_cache_read=usage.cached_tokens,
        )
    }


def _results(rewards: list[float], runs: int) -> Any:
    """Return the mean reward over the measured runs, as Inspect's results."""
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    metrics = {}
    if rewards:
        metrics["mean"] = EvalMetric(name="mean", value=sum(rewards) / len(rewards))
    score = EvalScore(
        name="reward",
        scorer="reward",
        metrics=metrics,
        scored_samples=len(rewards),
        unscored_samples=runs - len(rewards),
    )
    return EvalResults(total_samples=runs, completed_samples=runs, scores=[score])
