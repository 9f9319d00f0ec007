"""The source `claude-code`: session files of Claude Code, `~/.claude/projects/PROJECT/SESSION.jsonl`, or a project's folder.

New files record each request (`api-request`, with the messages as blobs), which is rebuilt as it was sent. Older ones have the
conversation only, as rows that name the row before them. Subagents are runs of their own, and so is every history that was
rewritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.exchange import ForeignRun, RunSource
from hud.trace import ChatMessage
from hud.trace.ids import trace_id_of
from hud_integrations.sources.chat_messages import read_messages
from hud_integrations.sources.conversations import Conversations, ModelCall
from hud_integrations.sources.json_lines import leading_rows, rows_of, time_of
from hud_integrations.sources.openai_logs import usage_of

_Row = dict[str, Any]
_SYNTHETIC = "<synthetic>"
"""Model of messages that the program wrote itself, such as those of a failed request."""


def is_session(path: Path) -> bool:
    """Return whether a file is a session, or a folder has one."""
    files = path.glob("*.jsonl") if path.is_dir() else [path]
    return any(
        "sessionId" in row
        and ("parentUuid" in row or str(row.get("type")).startswith("api-request"))
        for file in files
        for row in leading_rows(file)
    )


def read_sessions(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a session with its subagents, or of all sessions of a folder."""
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        parent = None
        for part in [file, *sorted((file.parent / file.stem / "subagents").glob("agent-*.jsonl"))]:
            agent = None if part is file else part.stem.removeprefix("agent-")
            for run in _runs(list(rows_of(part)), agent, parent):
                parent = parent or run.trace_id
                yield run


def _runs(rows: list[_Row], agent: str | None, parent: str | None) -> Iterator[ForeignRun]:
    """Yield the conversations of a file: the first is the session's own, unless the file is an agent's."""
    session = next((row["sessionId"] for row in rows if row.get("sessionId")), "session")
    calls = Conversations()
    for turn in _turns(rows):
        calls.add(turn)
    for number, conversation in enumerate(calls.all):
        side = conversation.extra.pop("agent", None) or agent
        is_main = number == 0 and side is None
        name = session if is_main else f"{session}:{conversation.id}"
        if not is_main:
            main = parent or trace_id_of(session)
            conversation.extra |= {"parent_trace_id": main}
            conversation.extra |= {"subagent": side} if side else {}
        yield conversation.run(foreign_id=name, slug=_project(rows))


def _project(rows: list[_Row]) -> str | None:
    folder = next((row["cwd"] for row in rows if row.get("cwd")), None)
    return None if folder is None else Path(folder).name


def _turns(rows: list[_Row]) -> Iterator[ModelCall]:
    """Yield the calls of a file: assistants' rows with equal request or message are one answer."""
    requests, history = _Requests(rows), _History(rows)
    for turn in _answers(rows):
        first = turn[0]
        message = first["message"]
        blocks = [block for row in turn for block in _blocks(row["message"].get("content"))]
        request = requests.of(first)
        sent = None if request is None else requests.messages(request)
        usage = usage_of(turn[-1]["message"].get("usage"))
        failed = message.get("model") == _SYNTHETIC or first.get("isApiErrorMessage")
        yield ModelCall(
            id=str(message.get("id") or first["uuid"]),
            messages=history.before(first) if sent is None else sent,
            answer=(read_messages([{"role": "assistant", "content": blocks}]) or [_EMPTY])[0],
            model=None if failed else message.get("model"),
            usage=usage,
            finish_reason=turn[-1]["message"].get("stop_reason"),
            started_at=time_of((request or first).get("timestamp")),
            ended_at=time_of(turn[-1].get("timestamp")),
            error=_text(blocks) if failed else None,
            extra={
                **({"agent": _agent(first)} if first.get("isSidechain") else {}),
                **({"tools": requests.tools(request)} if request is not None else {}),
                **{name: first[name] for name in ("version", "gitBranch") if first.get(name)},
            },
        )


_EMPTY: ChatMessage = {"role": "assistant", "content": None}


def _answers(rows: Iterable[_Row]) -> list[list[_Row]]:
    """Return the rows of each answer: a message's blocks are rows of their own."""
    turns: dict[str, list[_Row]] = {}
    for row in rows:
        if row.get("type") == "assistant" and isinstance(row.get("message"), dict):
            key = row.get("requestRef") or row.get("requestId") or row["message"].get("id")
            turns.setdefault(str(key or row.get("uuid")), []).append(row)
    return list(turns.values())


class _Requests:
    """The recorded requests of a file."""

    def __init__(self, rows: list[_Row]) -> None:
        self._by_id = {row["id"]: row for row in rows if row.get("type") == "api-request"}
        self._shapes = {
            row["shapeHash"]: row.get("shape") or {}
            for row in rows
            if row.get("type") == "api-request-shape"
        }
        self._blobs = {
            row["hash"]: read_messages([row.get("message")])
            for row in [*_shown_messages(rows), *rows]
            if row.get("type") == "api-request-blob"
        }
        self._systems = {
            key: read_messages([{"role": "system", "content": shape["system"]}])
            for key, shape in self._shapes.items()
            if shape.get("system")
        }

    def of(self, answer: _Row) -> _Row | None:
        """Return the request of an answer; None where the file has none."""
        return self._by_id.get(answer.get("requestRef") or "")

    def messages(self, request: _Row) -> list[ChatMessage] | None:
        """Return the messages of a request, system prompt first; None where the file lacks one of them."""
        hashes = self._hashes(request)
        if not all(key in self._blobs for key in hashes):
            return None
        blobs = [message for key in hashes for message in self._blobs[key]]
        return [*self._systems.get(request.get("shapeHash") or "", []), *blobs]

    def tools(self, request: _Row) -> list[str]:
        """Return the names of a request's tools."""
        shape = self._shapes.get(request.get("shapeHash") or "", {})
        return [str(tool.get("name")) for tool in shape.get("tools") or []]

    def _hashes(self, request: _Row) -> list[str]:
        """Return the messages of a request by hash: those that it keeps of its base, and its own."""
        chain = [request]
        while chain[-1].get("base") in self._by_id and len(chain) <= len(self._by_id):
            chain.append(self._by_id[chain[-1]["base"]])
        hashes: list[str] = []
        for link in reversed(chain):
            hashes = [*hashes[: link.get("keep") or 0], *(link.get("tail") or [])]
        return hashes


def _shown_messages(rows: list[_Row]) -> Iterator[_Row]:
    """Yield messages of the conversation as blobs: a request names them by the same hash."""
    results: dict[str, list[_Row]] = {}
    for row in rows:
        if _is_results(row):
            results.setdefault(str(row.get("parentUuid")), []).append(row)
    messages = [row["message"] for row in rows if row.get("type") == "user" and "message" in row]
    for turn in _answers(rows):
        content = [block for row in turn for block in _blocks(row["message"].get("content"))]
        answers = [result for row in turn for result in results.get(row.get("uuid") or "", [])]
        shown = [block for row in answers for block in _blocks(row["message"]["content"])]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": shown}]
    for message in messages:
        packed = exact_json.dumps(message, option=exact_json.OPT_SORT_KEYS)
        digest = hashlib.sha256(packed).hexdigest()
        yield {"type": "api-request-blob", "hash": digest, "message": message}


class _History:
    """Conversations of a file without requests: rows that name the row before them."""

    def __init__(self, rows: list[_Row]) -> None:
        self._rows = {row["uuid"]: row for row in rows if row.get("uuid")}
        self._turn_of = {
            row["uuid"]: turn for turn in _answers(rows) for row in turn if row.get("uuid")
        }
        self._results: dict[str, list[_Row]] = {}
        for row in rows:
            if _is_results(row):
                self._results.setdefault(str(row.get("parentUuid")), []).append(row)
        self._read: dict[str, list[ChatMessage]] = {}

    def before(self, answer: _Row) -> list[ChatMessage]:
        """Return the messages before an answer."""
        units: list[list[ChatMessage]] = []
        row, seen = self._rows.get(answer.get("parentUuid") or ""), set[str]()
        while row is not None and row["uuid"] not in seen:
            turn = self._turn_of.get(row["uuid"])
            if turn is not None:
                row = turn[0]
                units.append(self._turn(turn))
            elif not _is_results(
                row
            ):  # Results are read with their turn: parallel ones are no branches.
                units.append(self._message(row))
            seen.add(row["uuid"])
            row = self._rows.get(row.get("parentUuid") or "")
        return [message for unit in reversed(units) for message in unit]

    def _message(self, row: _Row) -> list[ChatMessage]:
        if row["uuid"] not in self._read:
            shown = row.get("type") in ("user", "system") and not row.get("isMeta")
            message = row.get("message") if shown else None
            self._read[row["uuid"]] = [] if message is None else read_messages([message])
        return self._read[row["uuid"]]

    def _turn(self, turn: list[_Row]) -> list[ChatMessage]:
        key = turn[0]["uuid"]
        if key not in self._read:
            blocks = [block for row in turn for block in _blocks(row["message"].get("content"))]
            results = [row for part in turn for row in self._results.get(part["uuid"], [])]
            content = [block for row in results for block in _blocks(row["message"]["content"])]
            messages = [{"role": "assistant", "content": blocks}]
            messages += [{"role": "user", "content": content}] if content else []
            self._read[key] = read_messages(messages)
        return self._read[key]


def _is_results(row: _Row) -> bool:
    message = row.get("message")
    blocks = _blocks(message.get("content")) if isinstance(message, dict) else []
    return row.get("type") == "user" and any(block.get("type") == "tool_result" for block in blocks)


def _agent(row: _Row) -> str:
    return str(row.get("agentId") or "sidechain")


def _blocks(content: Any) -> list[_Row]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or [] if isinstance(block, dict)]


def _text(blocks: list[_Row]) -> str:
    return "\n".join(block.get("text", "") for block in blocks) or "The request failed."


claude_code = RunSource(
    summary="a session file of Claude Code, or the folder of a project's",
    recognizes=is_session,
    read=read_sessions,
)
