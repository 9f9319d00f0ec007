"""Experiment trackers: W&B, MLflow, TensorBoard and OpenTelemetry, by their own clients.

Each client reads its own environment variables (`WANDB_MODE`, `MLFLOW_TRACKING_URI`, `OTEL_EXPORTER_OTLP_ENDPOINT`) and loads when a
training names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hud.train.monitoring.trackers import TrackerKind
from hud.train.run_settings import RunSettings


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


wandb = TrackerKind(Wandb, "wandb", "wandb")
mlflow = TrackerKind(Mlflow, "mlflow", "mlflow")
tensorboard = TrackerKind(TensorBoard, "tensorboard", "tensorboard")
opentelemetry = TrackerKind(
    OpenTelemetry,
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
)
