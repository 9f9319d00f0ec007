"""Tinker's protocol buffers: the request of a forward or backward pass, and the answers to it and to sampling.

Field numbers are those of tinker 0.38. Arrays are little-endian bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from hud.errors import UsageError
from hud.learning.datum_calls import DatumColumns, DatumPassResult, packed
from hud_integrations.shared.protobuf import (
    Value,
    as_bytes,
    as_double,
    as_text,
    data,
    double,
    fields,
    integer,
    signed,
)
from hud_integrations.tinker.service.wire.chunks import ImageChunk, InputChunk
from hud_integrations.tinker.service.wire.tensors import (
    FLOAT32,
    INT64,
    MOST_COLUMN_BYTES,
    read_column,
    too_large,
)

_LOSS_INPUTS = {
    "target_tokens": "targets",
    "weights": "weights",
    "logprobs": "logprobs",
    "advantages": "advantages",
    "sequence_ratio_mask": "ratio_mask",
}
_STOP, _LENGTH = 0, 1


@dataclass
class ForwardBackward:
    """Request of a pass."""

    model_id: str = ""
    seq_id: int = 0
    loss_fn: str = ""
    loss_fn_config: dict[str, float] = field(default_factory=dict)
    forward_only: bool = False
    datums: list[DatumColumns] = field(default_factory=list)
    """Datums; those with images have their inputs in `chunks` alone."""
    chunks: dict[int, list[InputChunk]] = field(default_factory=dict)
    """Inputs of the datums with images, by their number."""
    fault: UsageError | None = None
    """Reason why no pass can be computed: inputs of no loss here, audio. There are no datums then."""
    received: float = field(default_factory=time.monotonic)
    """Monotonic time."""


@dataclass(frozen=True)
class SampledSequence:
    """A sampled sequence."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool
    """False: the limit of tokens ended it."""
    top: list[list[tuple[int, float]]] | None = None
    """Most likely tokens of each position, in descending order."""


@dataclass(frozen=True)
class Sampled:
    """Answer to a sampling request."""

    sequences: list[SampledSequence]
    cached_tokens: int = 0
    prompt_logprobs: list[float] | None = None
    """One for each prompt token, NaN where there is none."""
    prompt_top: list[list[tuple[int, float]]] | None = None
    prompt_drawn: list[list[tuple[int, float]]] | None = None
    """Tokens drawn at each position of the prompt but the first, and their logprobs."""
    prompt_targets: bytes | None = None
    """Logprobs of `TargetIds`, encoded in their layout."""


def read_forward_backward(body: bytes) -> ForwardBackward:
    """Parse the request of a pass. Faults are in what is returned: it takes its turn, and fails there.

    Raises `UsageError` for data that is no message, or is damaged before its model and its number.
    """
    request = ForwardBackward()
    try:
        _read_pass(request, body)
    except UsageError as error:
        if not request.model_id or request.seq_id < 1:
            raise
        request.fault = error
    if request.fault is not None:
        request.datums.clear()
    elif not request.datums:
        request.fault = UsageError("The request holds no datum.")
    return request


def _read_pass(request: ForwardBackward, body: bytes) -> None:
    """Read the fields of a pass into `request`. Raises `UsageError` for damaged data."""
    size = 0
    for number, value in fields(body):
        if number == 1:
            request.model_id = as_text(value)
        elif number == 2 and isinstance(value, int):
            request.seq_id = signed(value)
        elif number == 6:
            request.forward_only = bool(value)
        elif request.fault is None:
            try:
                size += _read_input(request, number, value)
                if size > MOST_COLUMN_BYTES:
                    raise too_large("The request")
            except UsageError as error:
                request.fault = error
                request.datums.clear()


def _read_input(request: ForwardBackward, number: int, value: Value) -> int:
    """Add a field's datum or setting to `request`; returns the size of a datum's targets and weights in bytes."""
    if number == 3:
        place = len(request.datums)
        datum, chunks = _datum(as_bytes(value), place)
        request.datums.append(datum)
        images = [chunk for chunk in chunks if isinstance(chunk, ImageChunk)]
        if images:
            request.chunks[place] = chunks
        files = sum(len(image.file) for image in images)
        return len(datum.targets) + len(datum.weights or b"") + files
    if number == 4:
        request.loss_fn = as_text(value)
    elif number == 5:
        key, entry = _entry(value)
        request.loss_fn_config[key] = as_double(entry)
    elif number == 7:
        key, entry = _entry(value)
        for kind, setting in fields(as_bytes(entry)):
            if kind != 1:
                raise UsageError(f"loss_fn_config holds text for {key!r}; it takes numbers.")
            request.loss_fn_config[key] = as_double(setting)
    return 0


def write_pass_result(result: DatumPassResult, datums: list[DatumColumns]) -> bytes:
    """Encode the answer to a pass over `datums`; a record holds neighbours with as many targets for each position."""
    pairs = zip(result.logprobs, datums, strict=True)
    records = b"".join(
        data(2, _record([row for row, _ in group], width))
        for width, group in groupby(pairs, key=lambda pair: pair[1].targets_each)
    )
    metrics = b"".join(
        data(3, data(1, name) + double(2, value)) for name, value in result.metrics.items()
    )
    return data(1, "ArrayRecord") + records + metrics


def _record(rows: list[bytes], width: int | None) -> bytes:
    """Encode the logprobs of datums, each (N,) or (N, `width`)."""
    ends = np.cumsum([0, *map(len, rows)])
    tensor = data(1, b"".join(rows)) + data(2, packed(ends, np.int64)) + integer(3, FLOAT32)
    if width is not None:
        tensor += integer(4, width)
    record = data(1, "ArrayRecord") + data(2, data(1, "logprobs") + data(2, tensor))
    return record + integer(3, len(rows))


def write_sampled(sampled: Sampled) -> bytes:
    """Encode the answer to a sampling request."""
    parts = []
    for sequence in sampled.sequences:
        encoded = integer(1, _STOP if sequence.stopped else _LENGTH)
        encoded += data(2, packed(sequence.tokens, np.int32))
        encoded += data(3, packed(sequence.logprobs, np.float32))
        if sequence.top is not None:
            encoded += data(4, _top(sequence.top))
        parts.append(data(1, encoded))
    if sampled.prompt_logprobs is not None:
        parts.append(data(2, packed(sampled.prompt_logprobs, np.float32)))
    if sampled.prompt_top is not None:
        parts.append(data(3, _top(sampled.prompt_top)))
    parts.append(integer(4, sampled.cached_tokens))
    if sampled.prompt_targets is not None:
        parts.append(data(5, sampled.prompt_targets))
    if sampled.prompt_drawn is not None:
        parts.append(data(6, _drawn(sampled.prompt_drawn)))
    return b"".join(parts)


def _top(rows: list[list[tuple[int, float]]]) -> bytes:
    """Encode most likely tokens; rows that are shorter than the longest are filled with token 0 and NaN."""
    width = max((len(row) for row in rows), default=0)
    full = [row + [(0, np.nan)] * (width - len(row)) for row in rows]
    tokens = packed([[token for token, _ in row] for row in full], np.int32)
    logprobs = packed([[value for _, value in row] for row in full], np.float32)
    return data(1, tokens) + data(2, logprobs) + integer(3, width) + integer(4, len(rows))


def _drawn(rows: list[list[tuple[int, float]]]) -> bytes:
    """Encode tokens and logprobs of draws, as many in each row, as two tensors."""
    shape = integer(4, len(rows)) + integer(4, len(rows[0]) if rows else 0)
    tokens = packed([[token for token, _ in row] for row in rows], np.int64)
    logprobs = packed([[value for _, value in row] for row in rows], np.float32)
    first = data(1, tokens) + integer(3, INT64) + shape
    return data(1, first) + data(2, data(1, logprobs) + integer(3, FLOAT32) + shape)


def _entry(value: Value) -> tuple[str, Value]:
    """Return key and value of a map's entry."""
    key, content = "", b""
    for number, part in fields(as_bytes(value)):
        if number == 1:
            key = as_text(part)
        elif number == 2:
            content = as_bytes(part)
    return key, content


def _datum(body: bytes, place: int) -> tuple[DatumColumns, list[InputChunk]]:
    """Return a datum and the chunks of its input, which is left out of the datum where an image is among them."""
    where = f"Datum {place}"
    chunks: list[InputChunk] = []
    columns: dict[str, bytes] = {}
    widths: dict[str, int | None] = {}
    for number, value in fields(body):
        if number == 1:
            chunks.append(_chunk(as_bytes(value), where))
        elif number == 2:
            name, tensor = _entry(value)
            if name not in _LOSS_INPUTS:
                raise UsageError(
                    f"{where} has the loss input {name!r}; there are: {', '.join(_LOSS_INPUTS)}."
                )
            columns[_LOSS_INPUTS[name]], widths[name] = read_column(
                as_bytes(tensor), f"{name} of {where}"
            )
    if "targets" not in columns:
        raise UsageError(f"{where} has no target_tokens.")
    targets = widths["target_tokens"]
    for name, width in widths.items():
        if width != targets and (width is not None or name == "weights"):
            raise UsageError(f"{name} of {where} must have the shape of its target_tokens.")
    texts = [chunk for chunk in chunks if not isinstance(chunk, ImageChunk)]
    # With images, `with_images` computes them all.
    text_only = len(texts) == len(chunks) > 0
    tokens = np.concatenate(texts) if text_only else np.zeros(0, np.int64)
    return DatumColumns(tokens=packed(tokens, np.int64), targets_each=targets, **columns), chunks


def _chunk(body: bytes, where: str) -> InputChunk:
    for number, value in fields(body):
        if number == 1:
            text = dict(fields(as_bytes(value)))
            try:
                return np.frombuffer(as_bytes(text.get(1, b"")), "<i4").astype(np.int64)
            except ValueError:
                raise UsageError(
                    f"model_input of {where} ends in the middle of a number."
                ) from None
        if number == 2:
            return _image(as_bytes(value), where)
    raise UsageError(f"{where} holds audio; this platform trains on tokens and images.")


def _image(body: bytes, where: str) -> ImageChunk:
    image = dict(fields(body))
    if 4 in image:
        raise UsageError(
            f"An image of {where} has other dimensions than its file; leave override_dimensions out."
        )
    expected = image.get(3)
    return ImageChunk(as_bytes(image.get(1, b"")), expected if isinstance(expected, int) else None)
