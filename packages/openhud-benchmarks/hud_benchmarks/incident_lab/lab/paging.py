"""The page that wakes somebody: the worst of what customers saw, in numbers, and no word on why."""

from __future__ import annotations

from collections import defaultdict

from hud_benchmarks.incident_lab.lab.recording import Recording

SLOW_FACTOR = 4
BACKLOG = 12


def add_page(recording: Recording, began: str) -> None:
    """Add the page to the recording. Raises `ValueError` where nothing is to be seen: then nothing broke."""
    before: dict[str, list[tuple[int, float]]] = defaultdict(list)
    after: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in recording.rows["edge_requests"]:
        (before if row["time"] < began else after)[row["route"]].append(
            (row["status"], row["seconds"])
        )
    alerts = sorted(
        (alert for route in after if (alert := _alert(route, before[route], after[route]))),
        reverse=True,
    )
    waiting = [
        row["value"]
        for row in recording.rows["metrics"]
        if row["metric"] == "queue_depth" and not row["labels"].endswith(":taken")
    ]
    if not alerts and waiting and waiting[-1] >= BACKLOG:
        alerts = [(1.0, f"{waiting[-1]:.0f} paid orders wait for fulfilment (normally none).")]
    if not alerts:
        raise ValueError("customers noticed nothing of the fault")
    text = " ".join(text for _, text in alerts[:2])
    recording.add("page", text=f"Since {began[11:19]} UTC: {text}", time=began[:19])


def _alert(
    route: str, before: list[tuple[int, float]], after: list[tuple[int, float]]
) -> tuple[float, str] | None:
    errors, usual = _failed(after), _failed(before)
    if errors > usual + 0.1:
        return errors, f"{route}: {errors:.0%} of requests fail (before: {usual:.0%})."
    slow, fast = _middle(after), _middle(before)
    if before and slow > SLOW_FACTOR * fast and slow > 0.5:
        return 0.1 + slow / 100, f"{route}: takes {slow:.1f} s (before: {fast:.2f} s)."
    return None


def _failed(requests: list[tuple[int, float]]) -> float:
    return sum(status == 0 or status >= 500 for status, _ in requests) / max(1, len(requests))


def _middle(requests: list[tuple[int, float]]) -> float:
    return sorted(seconds for _, seconds in requests)[len(requests) // 2]
