"""Export requests of OTLP, as JSON or protobuf, as plain spans.

Fields and numbers: https://github.com/open-telemetry/opentelemetry-proto (trace/v1/trace.proto, common/v1/common.proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud_integrations.shared.protobuf import (
    Value,
    as_bytes,
    as_double,
    as_text,
    fields,
    signed,
)

Span = dict[str, Any]
"""`trace_id`, `span_id`, `parent_id` (hexadecimal), `name`, `start`, `end` (nanoseconds since 1970; 0: not ended), `attributes`,
`events` (`name`, `time`, `attributes`), `status` (code) and `message`, `service`, `scope`."""

MOST_SPANS = 50_000
"""Maximum number of spans in one request."""
_DEEPEST = 32
_LATEST = 2**63


def spans_of_json(body: bytes) -> list[Span]:
    """Return the spans of a request in JSON. Raises `UsageError` for another body."""
    try:
        request = exact_json.loads(body)
        spans = [
            _json_span(span, _attributes(_dict(part.get("resource"))), _dict(scope.get("scope")))
            for part in _dict(request).get("resourceSpans") or []
            for scope in part.get("scopeSpans") or []
            for span in scope.get("spans") or []
        ]
    except (exact_json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"The body is no export request of OTLP in JSON: {type(error).__name__}: {error}."
        ) from error
    return _bounded(spans)


def spans_of_protobuf(body: bytes) -> list[Span]:
    """Return the spans of a request in protobuf. Raises `UsageError` for another body."""
    spans = []
    for part in _messages(body, 1):
        resource = next(iter(_messages(part, 1)), b"")
        attributes = _proto_attributes(resource, 1)
        for scope_spans in _messages(part, 2):
            scope = next(iter(_messages(scope_spans, 1)), b"")
            name = next((as_text(value) for number, value in fields(scope) if number == 1), "")
            spans += [
                _named(_proto_span(span), attributes, name) for span in _messages(scope_spans, 2)
            ]
    return _bounded(spans)


def _bounded(spans: list[Span]) -> list[Span]:
    if len(spans) > MOST_SPANS:
        raise UsageError(f"A request holds at most {MOST_SPANS:,} spans. Send several.")
    for span in spans:
        if not (0 <= span["start"] < _LATEST and 0 <= span["end"] < _LATEST):
            raise UsageError(f"The span {span['name']!r} has a time out of range.")
        if not (_is_hex(span["trace_id"], 32) and _is_hex(span["span_id"], 16)):
            raise UsageError(f"The span {span['name']!r} has no valid trace id and span id.")
    return spans


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and not set(text) - set("0123456789abcdef") and bool(text.strip("0"))


def _named(span: Span, resource: dict[str, Any], scope: str) -> Span:
    return {**span, "service": str(resource.get("service.name") or ""), "scope": scope}


def _json_span(span: Any, resource: dict[str, Any], scope: dict[str, Any]) -> Span:
    status = _dict(span.get("status"))
    code = status.get("code", 0)
    plain = {
        "trace_id": str(span["traceId"]).lower(),
        "span_id": str(span["spanId"]).lower(),
        "parent_id": str(span.get("parentSpanId") or "").lower(),
        "name": str(span.get("name") or ""),
        "start": int(span.get("startTimeUnixNano") or 0),
        "end": int(span.get("endTimeUnixNano") or 0),
        "attributes": _attributes(span),
        "events": [
            {
                "name": str(event.get("name") or ""),
                "time": int(event.get("timeUnixNano") or 0),
                "attributes": _attributes(event),
            }
            for event in span.get("events") or []
        ],
        "status": 2 if code in (2, "STATUS_CODE_ERROR") else 0,
        "message": str(status.get("message") or ""),
    }
    return _named(plain, resource, str(scope.get("name") or ""))


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {
        str(pair["key"]): _json_value(_dict(pair.get("value")))
        for pair in holder.get("attributes") or []
    }


def _json_value(value: dict[str, Any], depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise UsageError("An attribute is nested too deep.")
    if "arrayValue" in value:
        elements = _dict(value["arrayValue"]).get("values") or []
        return [_json_value(_dict(element), depth + 1) for element in elements]
    if "kvlistValue" in value:
        pairs = _dict(value["kvlistValue"]).get("values") or []
        return {
            str(pair["key"]): _json_value(_dict(pair.get("value")), depth + 1) for pair in pairs
        }
    if "intValue" in value:
        return int(value["intValue"])
    if "doubleValue" in value:
        return float(value["doubleValue"])
    return next(
        (value[name] for name in ("stringValue", "boolValue", "bytesValue") if name in value), None
    )


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    """Yield the embedded messages of a repeated field."""
    return (as_bytes(value) for field, value in fields(data) if field == number)


def _proto_span(data: bytes) -> Span:
    values: dict[int, Value] = {}
    attributes: dict[str, Any] = {}
    events = []
    for number, value in fields(data):
        if number == 9:
            attributes.update([_proto_pair(as_bytes(value))])
        elif number == 11:
            events.append(_proto_event(as_bytes(value)))
        else:
            values[number] = value
    status = dict(fields(as_bytes(values.get(15, b""))))
    return {
        "trace_id": as_bytes(values.get(1, b"")).hex(),
        "span_id": as_bytes(values.get(2, b"")).hex(),
        "parent_id": as_bytes(values.get(4, b"")).hex(),
        "name": as_text(values.get(5, b"")),
        "start": _fixed64(values.get(7)),
        "end": _fixed64(values.get(8)),
        "attributes": attributes,
        "events": events,
        "status": 2 if status.get(3) == 2 else 0,
        "message": as_text(status.get(2, b"")),
    }


def _proto_event(data: bytes) -> dict[str, Any]:
    values = dict(fields(data))
    return {
        "name": as_text(values.get(2, b"")),
        "time": _fixed64(values.get(1)),
        "attributes": _proto_attributes(data, 3),
    }


def _proto_attributes(data: bytes, number: int) -> dict[str, Any]:
    return dict(_proto_pair(pair) for pair in _messages(data, number))


def _proto_pair(data: bytes, depth: int = 0) -> tuple[str, Any]:
    values = dict(fields(data))
    return as_text(values.get(1, b"")), _proto_value(as_bytes(values.get(2, b"")), depth)


def _proto_value(data: bytes, depth: int) -> Any:
    """Return an AnyValue; None for an empty one."""
    if depth > _DEEPEST:
        raise UsageError("An attribute is nested too deep.")
    for number, value in fields(data):
        match number:
            case 1:
                return as_text(value)
            case 2:
                return bool(value)
            case 3:
                return signed(value) if isinstance(value, int) else None
            case 4:
                return as_double(value)
            case 5:
                return [_proto_value(item, depth + 1) for item in _messages(as_bytes(value), 1)]
            case 6:
                pairs = _messages(as_bytes(value), 1)
                return dict(_proto_pair(pair, depth + 1) for pair in pairs)
            case 7:
                return as_bytes(value).hex()
    return None


def _fixed64(value: Value | None) -> int:
    if value is None:
        return 0
    if len(as_bytes(value)) != 8:
        raise UsageError("The body of this request is no valid protocol buffer.")
    number: int = struct.unpack("<Q", as_bytes(value))[0]
    return number
