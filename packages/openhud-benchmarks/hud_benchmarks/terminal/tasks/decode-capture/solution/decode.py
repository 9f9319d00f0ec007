"""Decodes the capture."""

import json
from pathlib import Path


def checksum(data: bytes) -> int:
    value = 0x1D
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = ((value << 1) ^ (0x2F if value & 0x80 else 0)) & 0xFF
    return value


def plain(data: bytes) -> bytes | None:
    made, escaped = bytearray(), False
    for byte in data:
        if escaped:
            made.append(byte ^ 0x20)
            escaped = False
        elif byte == 0x7D:
            escaped = True
        else:
            made.append(byte)
    return None if escaped else bytes(made)


def value_of(kind: int, payload: bytes) -> object:
    if kind == 0x10:
        return int.from_bytes(payload, "little", signed=True) / 10
    return int.from_bytes(payload, "little") if kind == 0x11 else payload.decode("latin-1")


capture = bytes.fromhex("".join(Path("capture.hex").read_text().split()))
readings: list[dict[str, object]] = []
last: dict[int, bytes] = {}
for part in capture.split(b"\x7e"):
    frame = plain(part)
    if (
        not frame
        or len(frame) < 5
        or len(frame) != 5 + frame[3]
        or checksum(frame[:-1]) != frame[-1]
    ):
        continue
    device, sequence, kind, length = frame[:4]
    if kind not in (0x10, 0x11, 0x20) or length != {0x10: 2, 0x11: 4}.get(kind, length):
        continue
    if last.get(device) == frame:
        continue
    last[device] = frame
    readings.append(
        {
            "device": device,
            "sequence": sequence,
            "kind": {0x10: "temperature", 0x11: "level", 0x20: "text"}[kind],
            "value": value_of(kind, frame[4:-1]),
        }
    )
Path("readings.json").write_text(json.dumps(readings))
