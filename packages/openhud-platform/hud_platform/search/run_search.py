"""Search over the runs of a team."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from hud.errors import UsageError
from hud_platform.search.query import SIGNS, Bound, Query, Term, parse
from hud_platform.search.run_index import has_index, index_missing
from hud_platform.search.run_words import Texts, run_texts, texts_of
from hud_platform.store import Store, tables
from hud_platform.store.job_titles import titles_of
from hud_platform.store.queries import as_dict
from hud_platform.store.task_labels import NO_TASK, task_labels

MOST_HITS = 2_000
"""Maximum number of runs of one search; `RunHits.more` is set beyond."""
SECONDS = 1.0
"""Time that one search spends on runs that are not indexed yet."""
SNIPPET = 240
"""Characters of a hit that are shown."""
_SHOWN = ("error", "answer", "result", "argument", "tool", "thought", "prompt")
"""Fields of a snippet in order of preference."""
_RUN = (
    *("trace_id", "job_id", "slug", "model", "checkpoint"),
    *("status", "reward", "failure_kind", "started_at", "turns"),
)


@dataclass(frozen=True)
class RunHits:
    """A page of runs, the newest first."""

    items: list[dict[str, Any]]
    """Columns of `runs`, `job` (the job's title), `label` (the task's) and `snippet` (`where`, and `parts` that match or do not)."""
    total: int
    more: bool
    """True where there are more than `MOST_HITS`."""
    missing: int
    """Runs that are not indexed yet."""
    runs: int | None
    """Runs of the team, of which `runs - missing` were searched; None: not counted, as all were searched and some match."""

    @property
    def searched(self) -> int:
        """Number of runs that were searched; 0 where they were not counted."""
        return max(0, (self.runs or 0) - self.missing)


def matching_runs(store: Store, team: str, text: str) -> list[str]:
    """Return the trace ids of the team's runs that meet every condition of `text`, the newest first, at most `MOST_HITS`.

    Raises `UsageError` as `search` does.
    """
    query = _checked(store, text)
    if not query:
        return []
    index_missing(store, team, SECONDS)
    with store.read() as connection:
        hits = connection.execute(_hits(connection.dialect.name, team, query)).scalars()
        return list(hits)[:MOST_HITS]


def search(store: Store, team: str, text: str, limit: int, offset: int) -> RunHits:
    """Return the team's runs that meet every condition of `text` (see `hud_platform.search.query`).

    Raises `UsageError` for a malformed query, and on a SQLite without FTS5.
    """
    query = _checked(store, text)
    if not query:
        return RunHits([], 0, False, 0, 0)
    missing = index_missing(store, team, SECONDS)
    with store.read() as connection:
        hits = connection.execute(_hits(connection.dialect.name, team, query)).scalars().all()
        total = min(len(hits), MOST_HITS)
        page = hits[:total][offset : offset + limit]
        rows = {row.trace_id: row for row in connection.execute(_runs(team, page))}
        rows_of_page = [rows[trace_id] for trace_id in page]
        texts = texts_of(connection, page)
        named = {row.job_id: row.job for row in rows_of_page if row.job is not None}
        titles = titles_of(connection, named)
    items = [_item(row, texts, titles, query) for row in rows_of_page]
    labels = task_labels(
        store, team, {run["slug"]: run["trace_id"] for run in items if run["slug"]}
    )
    for run in items:
        run["label"] = labels.get(run["slug"], NO_TASK)
    runs = None
    if missing or not hits:
        # Hot path: counting takes longer than the search.
        runs = int(store.value(sa.select(sa.func.count()).where(tables.runs.c.team_id == team)))
    return RunHits(items, total, len(hits) > MOST_HITS, missing, runs)


def _checked(store: Store, text: str) -> Query:
    query = parse(text)
    if query and not has_index(store):
        raise UsageError(
            "The SQLite of this Python has no FTS5, which searching needs: use another build of Python, "
            "or a PostgreSQL (hud up --database)."
        )
    return query


def snippet(texts: Texts, terms: Sequence[Term]) -> dict[str, Any]:
    """Return the part of a run's text that matches most terms, and its field."""
    best: tuple[int, str, str] = (0, "", "")
    for field in _SHOWN:
        patterns = [_pattern(term) for term in terms if term.field in (None, field)]
        for text in reversed(texts.get(field, [])):
            matches = sum(pattern.search(text) is not None for pattern in patterns)
            if matches > best[0]:
                best = (matches, field, text)
    matches, field, text = best
    if not matches:
        return {"where": None, "parts": []}
    every = _any_of(_pattern(term) for term in terms if term.field in (None, field))
    first = every.search(text)
    start = 0 if first is None else first.start()
    return {"where": field, "parts": _parts(text, every, start)}


def _item(
    row: Any, texts: dict[str, Texts], titles: dict[str, str], query: Query
) -> dict[str, Any]:
    values = {name: value for name, value in as_dict(row).items() if name in _RUN}
    return {
        **values,
        "started_at": None if row.started_at is None else row.started_at.isoformat(),
        "job": titles.get(row.job_id),
        "snippet": snippet(run_texts(texts.get(row.trace_id, {}), row), query.shown),
    }


def _hits(dialect: str, team: str, query: Query) -> sa.Select[Any]:
    """Return the query for trace ids, the newest first."""
    indexed = tables.indexed_runs
    wanted = [indexed.c.team_id == team, *(_bound(bound) for bound in query.bounds)]
    newest = sa.select(indexed.c.trace_id).where(*wanted).limit(MOST_HITS + 1)
    if not query.terms:
        return newest.order_by(indexed.c.id.desc())
    words = sa.table("run_words", sa.column("rowid"), sa.column("words"))
    newest = newest.join_from(words, indexed, words.c.rowid == indexed.c.id)
    if dialect == "postgresql":
        wanted_words = sa.func.to_tsquery(sa.literal_column("'simple'"), _tsquery(query.terms))
        return newest.where(words.c.words.op("@@")(wanted_words)).order_by(words.c.rowid.desc())
    matches = sa.literal_column("run_words").op("MATCH")(_fts5(team, query.terms))
    return newest.where(matches).order_by(words.c.rowid.desc())


def _bound(bound: Bound) -> sa.ColumnElement[bool]:
    condition: sa.ColumnElement[bool] = SIGNS[bound.sign](
        tables.indexed_runs.c[bound.field], bound.number
    )
    return sa.not_(condition) if bound.excluded else condition


def _runs(team: str, traces: Sequence[str]) -> sa.Select[Any]:
    runs, jobs = tables.runs, tables.jobs
    return (
        sa.select(
            *(runs.c[name] for name in _RUN), runs.c.content, runs.c.error, jobs.c.name.label("job")
        )
        .join(jobs, jobs.c.id == runs.c.job_id, isouter=True)
        .where(runs.c.team_id == team, runs.c.trace_id.in_(traces))
    )


def _fts5(team: str, terms: Sequence[Term]) -> str:
    """Return terms in FTS5's language. Words are letters and digits: nothing in them needs escaping."""

    def either(term: Term) -> str:
        ways = [
            f'"{" ".join(tag + word for word in term.words)}"{" *" if term.prefix else ""}'
            for tag in term.tags
        ]
        return f"({' OR '.join(ways)})"

    wanted = [f'team_id : "{team}"']
    wanted += [f"words : {either(term)}" for term in terms if not term.excluded]
    excluded = [f"words : {either(term)}" for term in terms if term.excluded]
    return " NOT ".join([f"({' AND '.join(wanted)})", *excluded])


def _tsquery(terms: Sequence[Term]) -> str:
    def either(term: Term) -> str:
        ways = [
            f"({' <-> '.join(tag + word for word in term.words)}{':*' * term.prefix})"
            for tag in term.tags
        ]
        return f"{'!' if term.excluded else ''}({' | '.join(ways)})"

    return " & ".join(map(either, terms))


def _any_of(patterns: Iterable[re.Pattern[str]]) -> re.Pattern[str]:
    return re.compile("|".join(pattern.pattern for pattern in patterns), re.IGNORECASE)


def _pattern(term: Term) -> re.Pattern[str]:
    end = "" if term.prefix else r"(?![^\W_])"
    between = r"[\W_]+".join(map(re.escape, term.words))
    return re.compile(rf"(?<![^\W_]){between}{end}", re.IGNORECASE)


def _parts(text: str, every: re.Pattern[str], first: int) -> list[dict[str, Any]]:
    """Return the text around the first match, cut where matches begin and end."""
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
