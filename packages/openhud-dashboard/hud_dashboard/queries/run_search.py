"""Full-text search over the prompts and answers of runs: FTS5 on SQLite, a GIN index on PostgreSQL.

Recording a run puts it in a queue (`runs_to_index`); the search itself indexes what waits there, the newest first, for a
bounded time. What is indexed are words, so that both databases find the same runs: letters and digits, in lower case,
without punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import UsageError
from hud.platform.store import Store, tables
from hud.platform.store.ingest import upsert
from hud.platform.store.job_titles import titles_of
from hud.platform.store.queries import as_dict

MOST_HITS = 2_000
"""Runs that one search finds; beyond, it says that there are more."""
MOST_TERMS = 16
SECONDS = 1.0
"""Time that one search spends on runs that are not indexed yet."""
SNIPPET = 240
"""Characters of a hit that are shown."""
_RUNS_AT_ONCE = 100
_MOST_WORDS = 4_000
"""Indexed of a run's prompts, its first, and of its answers, its last."""
_LONGEST_WORD = 64
_LONGEST_STEP = 1 << 20
"""Bytes of a step's payload; longer ones are not indexed."""
_DEEPEST = 4
"""Of lists and objects round a text: messages, a message, its blocks, a block."""
_WORD = re.compile(r"[^\W_]+")
_TERM = re.compile(r'"([^"]*)"|([^\s"]+)')
_RUN = (
    *("trace_id", "job_id", "slug", "model", "checkpoint"),
    *("status", "reward", "failure_kind", "started_at"),
)


@dataclass(frozen=True)
class Term:
    """Words that follow one another; `exact`: the last of them is whole, not the beginning of a word."""

    words: tuple[str, ...]
    exact: bool


@dataclass(frozen=True)
class Found:
    """A page of runs, the newest first."""

    items: list[dict[str, Any]]
    """Columns of `runs`, `job` (the job's title) and `snippet` (`where`, and `parts` of text that match or do not)."""
    total: int
    more: bool
    """True where there are more than `MOST_HITS`."""
    missing: int
    """Runs that are not indexed yet."""
    runs: int
    """Runs of the team; `runs - missing` were searched."""

    @property
    def searched(self) -> int:
        """Number of runs whose prompts and answers were searched."""
        return max(0, self.runs - self.missing)


def search(store: Store, team: str, text: str, limit: int, offset: int) -> Found:
    """Return the team's runs whose prompts and answers hold every term of `text`.

    A term is a word, of which the beginning is enough, or "words in quotes", which follow one another as they are.
    """
    wanted = terms(text)
    if not wanted:
        return Found([], 0, False, 0, 0)
    missing = index_missing(store, team)
    with store.read() as connection:
        hits = connection.execute(_hits(connection, team, wanted)).scalars().all()
        total = min(len(hits), MOST_HITS)
        page = hits[:total][offset : offset + limit]
        rows = {row.trace_id: as_dict(row) for row in connection.execute(_runs(team, page))}
        shown = [rows[trace_id] for trace_id in page]
        texts = texts_of(connection, page)
        named = {row["job_id"]: row["job"] for row in shown if row["job"] is not None}
        titles = titles_of(connection, named)
    for row in shown:
        row["started_at"] = None if row["started_at"] is None else row["started_at"].isoformat()
        row["job"] = titles.get(row["job_id"])
        row["snippet"] = snippet(texts.get(row["trace_id"], ("", "")), row.pop("content"), wanted)
    count = sa.select(sa.func.count()).where(tables.runs.c.team_id == team)
    return Found(shown, total, len(hits) > MOST_HITS, missing, int(store.value(count)))


def terms(text: str) -> list[Term]:
    """Return what to look for."""
    parsed = []
    for quoted, bare in _TERM.findall(text)[:MOST_TERMS]:
        words = tuple(word[:_LONGEST_WORD] for word in _WORD.findall((quoted or bare).lower()))
        if words:
            parsed.append(Term(words[:MOST_TERMS], exact=bool(quoted)))
    return parsed


def index_missing(store: Store, team: str, seconds: float = SECONDS) -> int:
    """Index the runs that wait for it, the newest first, for a time; return how many are left."""
    waiting = tables.runs_to_index
    theirs = waiting.c.team_id == team
    newest = sa.select(waiting.c.id, waiting.c.trace_id).where(theirs).order_by(waiting.c.id.desc())
    until = monotonic() + seconds
    while True:
        if store.row(newest.limit(1)) is None:
            return 0
        with store.begin() as connection:
            # On PostgreSQL, somebody else's search may be at the same rows.
            some = newest.limit(_RUNS_AT_ONCE).with_for_update(skip_locked=True)
            _index(connection, team, {row.trace_id: row.id for row in connection.execute(some)})
        if monotonic() > until:
            return int(store.value(sa.select(sa.func.count()).where(theirs)))


def _index(connection: sa.Connection, team: str, places: dict[str, int]) -> None:
    """Index runs by their number in the queue, so that later numbers are newer runs."""
    runs, texts, waiting = tables.runs, tables.run_texts, tables.runs_to_index
    query = sa.select(runs.c.trace_id, runs.c.content).where(runs.c.trace_id.in_(places))
    contents = {row.trace_id: row.content for row in connection.execute(query)}
    texts_by_trace = texts_of(connection, list(places))
    rows = [
        {
            "id": place,
            "trace_id": trace,
            "team_id": team,
            "words": _words(*texts_by_trace[trace], contents.get(trace)),
        }
        for trace, place in places.items()
    ]
    connection.execute(sa.delete(texts).where(texts.c.trace_id.in_(places)))
    upsert(connection, texts, rows)
    connection.execute(sa.delete(waiting).where(waiting.c.id.in_(places.values())))


def texts_of(connection: sa.Connection, traces: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return what each trace was told and what its agent said."""
    steps = tables.steps
    query = (
        sa.select(steps.c.trace_id, steps.c.payload)
        .where(steps.c.trace_id.in_(traces), sa.func.length(steps.c.payload) <= _LONGEST_STEP)
        .order_by(steps.c.trace_id, steps.c.step_id)
    )
    prompts: dict[str, list[str]] = {trace: [] for trace in traces}
    answers: dict[str, list[str]] = {trace: [] for trace in traces}
    for trace, payload in connection.execute(query):
        step = _object(payload)
        if step.get("source") in ("user", "system"):
            prompts[trace] += _texts(step.get("messages"))
        elif step.get("source") == "agent":
            answers[trace] += [*_texts(step.get("messages")), *_texts(step.get("content"))]
    return {trace: ("\n".join(prompts[trace]), "\n".join(answers[trace])) for trace in traces}


def snippet(texts: tuple[str, str], content: str | None, wanted: Sequence[Term]) -> dict[str, Any]:
    """Return a piece of the text that holds most terms: of an answer, else of a prompt."""
    prompt, answer = texts
    places = (("answer", answer), ("answer", content or ""), ("prompt", prompt))
    patterns = [_pattern(term) for term in wanted]
    where, text = max(
        places, key=lambda place: sum(pattern.search(place[1]) is not None for pattern in patterns)
    )
    every = re.compile("|".join(pattern.pattern for pattern in patterns), re.IGNORECASE)
    first = every.search(text)
    if first is None:
        return {"where": None, "parts": []}
    return {"where": where, "parts": _parts(text, every, first.start())}


def _hits(connection: sa.Connection, team: str, wanted: Sequence[Term]) -> sa.Select[Any]:
    """Trace ids, the newest first."""
    texts = tables.run_texts
    newest = sa.select(texts.c.trace_id).order_by(texts.c.id.desc()).limit(MOST_HITS + 1)
    if connection.dialect.name == "postgresql":
        words = sa.func.to_tsvector(sa.literal_column("'simple'"), texts.c.words)
        query = sa.func.to_tsquery(sa.literal_column("'simple'"), _tsquery(wanted))
        return newest.where(texts.c.team_id == team, words.op("@@")(query))
    if not sa.inspect(connection).has_table("run_words"):
        raise UsageError(
            "The SQLite of this Python has no FTS5, which searching needs: use another build of Python, "
            "or a PostgreSQL (hud up --database)."
        )
    matching = sa.text(
        "SELECT rowid AS id FROM run_words WHERE run_words MATCH :match ORDER BY rowid DESC LIMIT :most"
    ).bindparams(match=_fts5(team, wanted), most=MOST_HITS + 1)
    return newest.where(texts.c.id.in_(matching.columns(id=sa.Integer)))


def _runs(team: str, traces: Sequence[str]) -> sa.Select[Any]:
    runs, jobs = tables.runs, tables.jobs
    return (
        sa.select(*(runs.c[name] for name in _RUN), runs.c.content, jobs.c.name.label("job"))
        .join(jobs, jobs.c.id == runs.c.job_id, isouter=True)
        .where(runs.c.team_id == team, runs.c.trace_id.in_(traces))
    )


def _fts5(team: str, wanted: Sequence[Term]) -> str:
    """The query in FTS5's language. Words are letters and digits: nothing in them needs escaping."""
    shown = (f'"{" ".join(term.words)}"{"" if term.exact else " *"}' for term in wanted)
    return f'team_id : "{team}" AND words : ({" AND ".join(shown)})'


def _tsquery(wanted: Sequence[Term]) -> str:
    shown = (f"{' <-> '.join(term.words)}{'' if term.exact else ':*'}" for term in wanted)
    return " & ".join(f"({term})" for term in shown)


def _pattern(term: Term) -> re.Pattern[str]:
    end = r"(?![^\W_])" if term.exact else ""
    between = r"[\W_]+".join(map(re.escape, term.words))
    return re.compile(rf"(?<![^\W_]){between}{end}", re.IGNORECASE)


def _parts(text: str, every: re.Pattern[str], first: int) -> list[dict[str, Any]]:
    """Return the text round the first match, cut where matches begin and end."""
    start = max(0, first - SNIPPET // 3)
    end = min(len(text), start + SNIPPET)
    parts = [{"text": "… ", "match": False}] if start else []
    place = start
    for match in every.finditer(text, start, end):
        parts += [
            {"text": text[place : match.start()], "match": False},
            {"text": match.group(), "match": True},
        ]
        place = match.end()
    parts.append({"text": text[place:end] + (" …" if end < len(text) else ""), "match": False})
    return [part for part in parts if part["text"]]


def _object(payload: bytes) -> dict[str, Any]:
    """Return a step; nothing of what some client sent instead of one."""
    try:
        step = exact_json.loads(payload)
    except exact_json.JSONDecodeError:
        return {}
    return step if isinstance(step, dict) else {}


def _words(prompt: str, answer: str, content: str | None) -> str:
    prompt_words = _WORD.findall(prompt.lower())[:_MOST_WORDS]
    answer_words = _WORD.findall(f"{answer}\n{content or ''}".lower())[-_MOST_WORDS:]
    return " ".join(word[:_LONGEST_WORD] for word in (*prompt_words, *answer_words))


def _texts(value: Any, depth: int = 0) -> list[str]:
    """Return the texts of messages, of content in blocks, or of a text itself."""
    if isinstance(value, str):
        return [value]
    if depth > _DEEPEST:
        return []
    if isinstance(value, dict):
        return _texts(value.get("content", value.get("text")), depth + 1)
    if isinstance(value, list):
        return [text for part in value for text in _texts(part, depth + 1)]
    return []
