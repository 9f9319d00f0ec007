"""`RunSnapshot`: a run at a step's end, as bytes: its steps with their exact token ids, its agent, its environment's files."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hud import exact_json
from hud.client.recording import MemoryRecorder
from hud.environment.run_snapshot import parts_of_text, parts_to_text
from hud.errors import UsageError
from hud.trace import AgentStep, Sample, Step
from hud.trace.recording.journal import decode_events
from hud.trace.steps import parse_step

MOST_BYTES = 192 << 20
"""Largest snapshot of a run."""
_VERSION = 1
_UNREADABLE = (KeyError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True)
class RunSnapshot:
    """A run after a turn and its tool calls."""

    steps: Sequence[Step]
    agent: Mapping[str, Any]
    """State of its agent, as `RunView.turn_ended` got it."""
    parts: Mapping[str, bytes]
    """Archives of the environment's parts, by name."""
    content: str | None
    """The answer so far."""
    extra: Mapping[str, Any]
    """Further data of its trace."""

    def encode(self, lines: bytes) -> bytes:
        """Return the snapshot as bytes; `lines`: its steps, as `StepLines` has them."""
        head = {
            "version": _VERSION,
            "agent": self.agent,
            "parts": parts_to_text(self.parts),
            "content": self.content,
            "extra": self.extra,
        }
        return (
            exact_json.dumps(head, option=exact_json.OPT_NON_STR_KEYS)
            + b"\n"
            + zlib.compress(lines, 1)
        )

    @classmethod
    def decode(cls, data: bytes) -> RunSnapshot:
        """Return the snapshot of `encode`. Raises `UsageError` for other data."""
        try:
            head, _, lines = data.partition(b"\n")
            fields = exact_json.loads(head)
            if fields["version"] != _VERSION:
                raise ValueError("version")
            stream = zlib.decompressobj()
            steps = _steps(stream.decompress(lines, MOST_BYTES))
            if not stream.eof:
                raise ValueError("size")
            parts = parts_of_text(fields["parts"])
            return cls(steps, fields["agent"], parts, fields["content"], fields["extra"])
        except (*_UNREADABLE, zlib.error) as error:
            raise UsageError(f"A snapshot cannot be read: {error}.") from error


class StepLines:
    """The steps of a run as journal lines, each encoded once: prompts are differences to the turns that they continue."""

    def __init__(self, trace_id: str) -> None:
        self._trace_id = trace_id
        self._recorder = MemoryRecorder()
        self._lines = b""
        self._count = 0

    def of(self, steps: Sequence[Step]) -> bytes:
        """Return the lines of all steps; those of the last call begin them."""
        for step in steps[self._count :]:
            self._recorder.step_recorded(self._trace_id, step)
        self._count = len(steps)
        self._lines += self._recorder.take()
        return self._lines


def _steps(lines: bytes) -> list[Step]:
    steps: dict[int, Step] = {}
    samples: dict[int, Sample] = {}
    for event in decode_events(lines):
        if event is None:
            raise ValueError("a line is damaged")
        payload = exact_json.loads(event.payload)
        if event.kind == b"S":
            steps[event.step] = parse_step(payload)
            continue
        step = steps[event.step]
        assert isinstance(step, AgentStep)
        step.sample = samples[event.step] = _sample(payload, samples, step.sample)
    return list(steps.values())


def _sample(
    payload: Mapping[str, Any], earlier: Mapping[int, Sample], chunked: Sample | None
) -> Sample:
    """Return a turn's exact tokens; its prompt continues an earlier one's, or is whole."""
    before = None if payload["extends"] is None else earlier[payload["extends"]]
    prompt, pictures = list(payload["prompt"]), list(payload.get("pictures") or ())
    if before is not None:
        prompt = before.prompt_token_ids + before.output_token_ids + prompt
        pictures = [picture.model_dump() for picture in before.pictures] + pictures
    fields: dict[str, Any] = {
        "prompt_token_ids": prompt,
        "output_token_ids": payload["output"],
        "output_logprobs": payload["logprobs"],
        "pictures": pictures,
        "prompt_chunks": None if chunked is None else chunked.prompt_chunks,
    }
    names = ("checkpoint", "swaps", "temperature", "excluded")
    return Sample.model_validate(
        {**fields, **{name: payload[name] for name in names if name in payload}}
    )


def same_prompt(steps: Iterable[Step], prompt: Sequence[Any]) -> bool:
    """Return True if the steps begin with this prompt: the task's setup did again what it had done."""
    recorded = next((step.messages for step in steps if step.source == "user"), None)
    return recorded is not None and list(recorded) == list(prompt)
