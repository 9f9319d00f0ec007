"""The port of experiment trackers, which log the metrics of a training; they join by entry points of the group `hud.trackers`.

A tracker that fails is reported once and ends no training.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score
from hud.plugs import load_all
from hud.train.monitoring.progress import Reporter
from hud.train.run_settings import RunSettings


class Tracker(Protocol):
    """One open run of an experiment tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at an optimizer step."""

    def close(self) -> None:
        """Send what is left, and end the run."""


@dataclass(frozen=True)
class TrackerKind:
    """A kind of tracker, joined by an entry point of the group `hud.trackers`."""

    open: Callable[[RunSettings, str], Tracker]
    """Open a run for a configuration and a training run's id; a resumed training goes on in the same run where the kind can."""
    module: str
    """Module of the client that it needs."""
    packages: str
    """Packages that pip installs for it."""


def tracker_kinds() -> dict[str, TrackerKind]:
    """Return the kinds by name; raises `UsageError` for one that cannot be imported."""
    return load_all("hud.trackers", TrackerKind)


def check_trackers(names: Sequence[str]) -> None:
    """Raise `UsageError` for a tracker that is unknown or not installed."""
    kinds = tracker_kinds() if names else {}
    for name in names:
        if name not in kinds:
            raise UsageError(f"There is no tracker {name!r}; there are {', '.join(kinds)}.")
        if not _is_installed(kinds[name].module):
            raise UsageError(
                f"track = {name!r} needs its client: pip install {kinds[name].packages}"
            )


def with_trackers(config: RunSettings, reporter: Reporter) -> Reporter:
    """Return a reporter that also logs to the trackers of the configuration.

    Raises `UsageError` for a tracker that is unknown or not installed.
    """
    check_trackers(config.track)
    return TrackingReporter(config, reporter) if config.track else reporter


class TrackingReporter(Reporter):
    """Passes everything on to another reporter, and logs steps and held-out scores."""

    def __init__(self, config: RunSettings, shown: Reporter) -> None:
        self._config, self._shown = config, shown
        self._open: dict[str, Tracker] = {}
        self.phase = shown.phase  # type: ignore[method-assign]
        self.run_ended = shown.run_ended  # type: ignore[method-assign]
        self.note = shown.note  # type: ignore[method-assign]
        self.loss_measured = shown.loss_measured  # type: ignore[method-assign]

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self._shown.started(run_id, first_step, steps)
        kinds = tracker_kinds() if self._config.track else {}
        for name in self._config.track:
            with self._reporting(name):
                self._open[name] = kinds[name].open(self._config, run_id)

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self._shown.stepped(step, metrics)
        self._log(step, metrics)

    def scored(self, score: Score) -> None:
        self._shown.scored(score)
        sets = {f"held_out/{set_score.name}": set_score.mean for set_score in score.sets}
        self._log(score.step, {"held_out": score.mean, **sets})

    def close(self) -> None:
        self._shown.close()
        for name, tracker in list(self._open.items()):
            with self._reporting(name):
                tracker.close()
        self._open.clear()

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        for name, tracker in list(self._open.items()):
            with self._reporting(name):
                tracker.log(step, values)

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (
            Exception
        ) as error:  # Clients raise errors of their networks and files; the training matters more.
            self._open.pop(name, None)
            self.note(f"Nothing more is logged to {name}: {type(error).__name__}: {error}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
