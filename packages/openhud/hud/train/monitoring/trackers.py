"""Experiment trackers: the metrics of a training, logged to W&B, MLflow, TensorBoard or OpenTelemetry by their own clients.

Each client reads its own environment variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, `OTEL_EXPORTER_OTLP_ENDPOINT`) and loads when a
training names it. A tracker that fails is reported once and ends no training.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from hud.errors import UsageError
from hud.train.monitoring.progress import Reporter, Score
from hud.train.run_settings import RunSettings


class Tracker(Protocol):
    """One open run of an experiment tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log values at an optimizer step."""

    def close(self) -> None:
        """Send what is left, and end the run."""


class Wandb:
    """A run of Weights & Biases; a resumed training goes on in the same run."""

    def __init__(self, config: RunSettings, run_id: str) -> None:
        import wandb

        self._run: Any = wandb.init(
            project="openhud",
            name=config.model,
            id=run_id,
            resume="allow",
            config=config.model_dump(mode="json"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of MLflow in the experiment `openhud`, found again by the training run's id."""

    def __init__(self, config: RunSettings, run_id: str) -> None:
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient()
        experiment = self._client.get_experiment_by_name("openhud")
        experiment_id = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment("openhud")
        )
        earlier = self._client.search_runs(
            [experiment_id], f"tags.training_run = '{run_id}'", max_results=1
        )
        if earlier:
            self._run_id = earlier[0].info.run_id
            return
        run = self._client.create_run(
            experiment_id, run_name=config.model, tags={"training_run": run_id}
        )
        self._run_id = run.info.run_id
        for name, value in config.model_dump(mode="json").items():
            self._client.log_param(self._run_id, name, str(value)[:500])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            # MLflow's names have no colon.
            self._client.log_metric(self._run_id, name.replace(":", "/"), value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


class TensorBoard:
    """Event files in `runs/MODEL-RUN`, where `tensorboard --logdir runs` looks."""

    def __init__(self, config: RunSettings, run_id: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make: Any = SummaryWriter
        self._writer = make(f"runs/{config.model.replace('/', '-')}-{run_id[:8]}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(":", "/"), value, step)

    def close(self) -> None:
        self._writer.close()


class OpenTelemetry:
    """Gauges `openhud.training.NAME` over OTLP, with the attributes `model`, `training_run` and `step`."""

    def __init__(self, config: RunSettings, run_id: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        # Exported by `log`, step by step: a gauge holds one value.
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), float("inf"))
        self._provider: Any = MeterProvider([reader])
        self._meter = self._provider.get_meter("openhud")
        self._gauges: dict[str, Any] = {}
        self._attributes = {"model": config.model, "training_run": run_id}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if name not in self._gauges:
                plain = name.replace(":", ".")
                self._gauges[name] = self._meter.create_gauge(f"openhud.training.{plain}")
            self._gauges[name].set(value, self._attributes | {"step": step})
        self._provider.force_flush()

    def close(self) -> None:
        self._provider.shutdown()


_TRACKERS: dict[str, tuple[Callable[[RunSettings, str], Tracker], str, str]] = {
    "wandb": (Wandb, "wandb", "wandb"),
    "mlflow": (Mlflow, "mlflow", "mlflow"),
    "tensorboard": (TensorBoard, "tensorboard", "tensorboard"),
    "opentelemetry": (
        OpenTelemetry,
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    ),
}
"""For each name its tracker, the module that it needs, and what pip installs for it."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise `UsageError` for a tracker that is unknown or not installed."""
    for name in names:
        if name not in _TRACKERS:
            raise UsageError(f"There is no tracker {name!r}; there are {', '.join(_TRACKERS)}.")
        _, module, packages = _TRACKERS[name]
        if not _is_installed(module):
            raise UsageError(f"track = {name!r} needs its client: pip install {packages}")


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

    def started(self, run_id: str, first_step: int, steps: int) -> None:
        self._shown.started(run_id, first_step, steps)
        for name in self._config.track:
            with self._reporting(name):
                self._open[name] = _TRACKERS[name][0](self._config, run_id)

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
