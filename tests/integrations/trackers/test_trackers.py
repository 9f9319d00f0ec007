"""W&B, MLflow, TensorBoard and OpenTelemetry by their own clients, offline or on loopback."""

import asyncio
import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="scripts/setup-integration trackers")

from mlflow.tracking import MlflowClient
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.integrations import letters
from wandb.proto.wandb_internal_pb2 import Record

from hud.cli.main import run as run_hud
from hud.errors import UsageError
from hud.eval import Taskset
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter

STEPS = 2
TASKS = Taskset("vowels", [letters.vowels(word=word) for word in ("red", "sun", "pot")])


class Notes(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text(Path(letters.__file__).read_text())
    create = "models create m --preset tiny --hidden 32 --layers 1 --json --tasks letters.py"
    assert run_hud(create.split()) == 0


def trained(*track, steps=STEPS, reporter=None):
    config = TrainConfig(
        model="m",
        steps=steps,
        group=4,
        tasks_per_step=2,
        lr=0.01,
        max_tokens=8,
        track=list(track),
    )
    report = asyncio.run(train(config, tasks=TASKS, held_out=TASKS, reporter=reporter))
    return [json.loads(line) for line in report.metrics_file.read_text().splitlines()]


def log_records(data, block=32_768, header=7):
    """Yield the records of a .wandb file: LevelDB's log format, after a header of its own."""
    at, parts = header, b""
    while at + header <= len(data):
        if block - at % block < header:  # Too short for a record: padding.
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # Whole, or the last part.
            yield parts
            parts = b""


def rewards(logged):
    return [row["reward:mean"] for row in logged if "reward:mean" in row]


def test_tensorboard_has_every_step_and_every_score(tmp_path):
    logged = trained("tensorboard")
    (folder,) = Path("runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("reward/mean")] == [0, 1]
    assert [event.value for event in events.Scalars("reward/mean")] == pytest.approx(
        rewards(logged)
    )
    assert [event.step for event in events.Scalars("held_out")] == [0, STEPS]


def test_mlflow_finds_its_run_again_when_a_training_goes_on():
    trained("mlflow")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("openhud")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["group"] == "4"
    assert [one.step for one in client.get_metric_history(run.info.run_id, "reward/mean")] == [0, 1]


def test_wandb_logs_offline():
    logged = trained("wandb")
    (file,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    ends = time.monotonic() + 60  # wandb's own process writes the file.
    while len(means_in(file)) < STEPS and time.monotonic() < ends:
        time.sleep(0.2)
    assert means_in(file) == pytest.approx(rewards(logged))


def means_in(file):
    means = []
    for data in log_records(file.read_bytes()):
        record = Record.FromString(data)
        items = {
            item.key or "/".join(item.nested_key): item.value_json for item in record.history.item
        }
        if "reward:mean" in items:
            means.append(json.loads(items["reward:mean"]))
    return means


def test_opentelemetry_exports_gauges_over_http(monkeypatch):
    received = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    with contextlib.closing(server.socket):
        logged = trained("opentelemetry")
        server.shutdown()
    points = [
        point.as_double
        for request in received
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "openhud.training.reward.mean"
        for point in metric.gauge.data_points
    ]
    for reward in rewards(logged):
        assert any(point == pytest.approx(reward) for point in points)


def test_a_tracker_that_fails_ends_no_training(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    reporter = Notes()
    assert len(rewards(trained("mlflow", reporter=reporter))) == STEPS
    assert sum("Nothing more is logged to mlflow" in note for note in reporter.notes) == 1


def test_an_unknown_tracker_is_refused_before_anything_is_played():
    with pytest.raises(UsageError, match="no tracker 'wandbb'; there are wandb, mlflow"):
        trained("wandbb")
