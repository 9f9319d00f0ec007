"""The source `codex`: rollout files of Codex, `~/.codex/sessions/.../rollout-*.jsonl`, or a folder with some below it.

A file is one run. A compaction replaces the history: what follows it is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hud.exchange import ForeignRun, RunSource
from hud.trace import ChatMessage
from hud.trace.ids import trace_id_of
from hud.trace.steps import Usage
from hud_integrations.sources.chat_messages import read_messages
from hud_integrations.sources.conversations import Conversations, ModelCall
from hud_integrations.sources.json_lines import leading_rows, rows_of, time_of

_Row = dict[str, Any]


def is_rollout(path: Path) -> bool:
    """Return whether a file is a rollout, or a folder has one."""
    files = path.rglob("rollout-*.jsonl") if path.is_dir() else [path]
    return any(
        row.get("type") == "session_meta" and "payload" in row
        for file in files
        for row in leading_rows(file)[:1]
    )


def read_rollouts(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a file, or of all files below a folder."""
    for file in sorted(path.rglob("rollout-*.jsonl")) if path.is_dir() else [path]:
        yield from _Rollout(list(rows_of(file))).runs()


class _Rollout:
    """The rows of one file, read in their order."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows
        self.id = "rollout"
        self.folder: str | None = None
        self.model: str | None = None
        self.extra: _Row = {}
        self.error: str | None = None
        self._calls = Conversations()
        self._history: list[ChatMessage] = []
        self._items: list[_Row] = []
        """Items since the last turn of the model."""
        self._turn: list[_Row] = []
        """Items of the turn that is being read."""
        self._usage: Usage | None = None
        self._at: tuple[Any, Any] = (None, None)

    def runs(self) -> Iterator[ForeignRun]:
        """Yield the conversations of the file."""
        for row in self.rows:
            payload = row.get("payload")
            if isinstance(payload, dict):
                self._read(str(row.get("type")), payload, row.get("timestamp"))
        self._end_turn()
        if not self._calls.all and self._items:
            self._turn = [{"role": "assistant", "content": None}]
            self._end_turn()
        for number, conversation in enumerate(self._calls.all):
            name = self.id if number == 0 else f"{self.id}:{conversation.id}"
            if number:
                conversation.extra["parent_trace_id"] = trace_id_of(self.id)
            yield conversation.run(foreign_id=name, slug=self.folder)

    def _read(self, kind: str, payload: _Row, at: Any) -> None:
        if kind == "session_meta":
            self.id = str(payload.get("id") or self.id)
            self.folder = Path(payload["cwd"]).name if payload.get("cwd") else None
            self.extra = {"version": payload.get("cli_version")}
            instructions = payload.get("base_instructions") or payload.get("instructions")
            text = instructions.get("text") if isinstance(instructions, dict) else instructions
            if text:
                self._items.append({"role": "system", "content": text})
        elif kind == "turn_context":
            self.model = payload.get("model") or self.model
        elif kind == "compacted":
            self._end_turn()
            replaced = payload.get("replacement_history")
            message = {"role": "user", "content": str(payload.get("message") or "")}
            self._history, self._items = [], replaced or [message]
        elif kind == "response_item":
            self._item(payload, at)
        elif kind == "event_msg":
            self._event(payload)

    def _item(self, item: _Row, at: Any) -> None:
        is_models = item.get("role") == "assistant" or (
            "role" not in item and not str(item.get("type")).endswith("_output")
        )
        if is_models:
            self._turn.append(item)
            self._at = (self._at[0] or at, at)
        else:
            self._end_turn()
            self._items.append(item)

    def _event(self, event: _Row) -> None:
        if event.get("type") == "token_count":
            usage = (event.get("info") or {}).get("last_token_usage") or {}
            self._usage = Usage(
                prompt_tokens=usage.get("input_tokens") or 0,
                completion_tokens=usage.get("output_tokens") or 0,
                cached_tokens=usage.get("cached_input_tokens") or 0,
            )
        elif event.get("type") in ("error", "stream_error", "task_complete"):
            problem = event.get("error") or event.get("message")
            self.error = str(problem.get("message")) if isinstance(problem, dict) else problem
            if event.get("type") == "task_complete" and self.error and not self._turn:
                self._turn = [{"role": "assistant", "content": None}]
                self._end_turn()

    def _end_turn(self) -> None:
        """Add the turn that was read as a call of the model."""
        if not self._turn:
            return
        self._history = [*self._history, *read_messages(self._items)]
        answers = read_messages(self._turn)
        began, ended = (time_of(moment) for moment in self._at)
        call = ModelCall(
            id=f"{len(self._calls.all)}",
            messages=self._history,
            answer=answers[0],
            model=self.model,
            usage=self._usage,
            started_at=began,
            ended_at=ended,
            error=self.error,
            extra=dict(self.extra),
        )
        self._calls.add(call)
        self._history = [*self._history, *answers]
        self._items, self._turn, self._usage, self._at, self.error = (
            [],
            [],
            None,
            (None, None),
            None,
        )


codex = RunSource(
    summary="a rollout file of Codex, or a folder with some below it",
    recognizes=is_rollout,
    read=read_rollouts,
)
