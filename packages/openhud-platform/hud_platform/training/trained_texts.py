"""Texts of training sequences as digests, for the comparison of a promotion's tasks with what the model was trained on."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hud.engine.chat.tokenizers.native_errors import decode
from hud.learning.datums import Datum
from hud.learning.wire_types import TrajectoryPayload
from hud.trace.ids import trace_id_of
from hud_platform.store import Store
from hud_platform.store.prompt_digests import question_digests, trained_digests
from hud_platform.store.trained_prompts import named_runs, prompts_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def digests_of_datums(tokenizer: Tokenizer, datums: Sequence[Datum]) -> set[int]:
    """Return the digests of the messages of datums."""
    marks = _marks(tokenizer)
    # With several targets for each position, several datums have the same tokens.
    distinct = {datum.tokens.tobytes(): datum for datum in datums}.values()
    return {
        digest
        for datum in distinct
        for digest in trained_digests(_messages(tokenizer, datum, marks))
    }


def digests_without_task(
    store: Store,
    team: str,
    tokenizer: Tokenizer,
    payloads: Sequence[TrajectoryPayload],
    datums: Sequence[Datum],
) -> set[int]:
    """Return the digests of the datums of trajectories whose task no recorded run names.

    A run names the task of its recorded tokens, and of tokens that have its prompt.
    """
    by_run: dict[int, list[Datum]] = {}
    for datum in datums:
        by_run.setdefault(datum.traj_idx, []).append(datum)
    traces = {run: payloads[run].trace_id for run in by_run}
    ids = {run: trace_id_of(trace) for run, trace in traces.items() if trace is not None}
    named = named_runs(store, team, set(ids.values()))
    sent = {
        identifier
        for run, identifier in ids.items()
        if identifier in named and payloads[run].recorded is None
    }
    prompts = dict(prompts_of(store, sent))
    digests: set[int] = set()
    for run, of_run in by_run.items():
        identifier = ids.get(run)
        if identifier in named and payloads[run].recorded is not None:
            continue
        of_texts = digests_of_datums(tokenizer, of_run)
        prompt = prompts.get(identifier or "")
        if prompt is None or of_texts.isdisjoint(question_digests({"": [prompt]}, {})):
            digests |= of_texts
    return digests


def _messages(tokenizer: Tokenizer, datum: Datum, marks: re.Pattern[str] | None) -> Iterator[str]:
    """Yield the texts of a datum between control tokens, and between prompts and answers."""
    counted = (datum.mask > 0) & ((datum.weights != 0) | (datum.advantages != 0))
    for tokens in np.split(datum.tokens, np.flatnonzero(np.diff(counted)) + 1):
        text = decode(tokenizer, tokens.tolist())
        yield from (text,) if marks is None else marks.split(text)


def _marks(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return the pattern of the tokens that a template writes around messages; None without any."""
    added: Collection[str] = {
        token.content for token in tokenizer.get_added_tokens_decoder().values() if token.content
    }
    return re.compile("|".join(map(re.escape, sorted(added, key=len)[::-1]))) if added else None
