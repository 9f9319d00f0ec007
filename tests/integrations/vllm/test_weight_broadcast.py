"""`benchmarks/perf/weight_broadcast.py`: every path of new weights is timed, vLLM's own against stand-ins."""

import contextlib
import importlib
import sys
from pathlib import Path

import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.vllm_transfer import SendingHalf

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "perf"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.setenv("BENCH_RECORDS", "")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("weight_broadcast")
    for name in set(sys.modules) - before:
        if name in ("weight_broadcast", "measure", "records"):
            del sys.modules[name]


def test_servers_get_weights_as_a_folder_and_as_tensors(benchmark, tmp_path, capsys):
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(StandIn(tiny_folder())) for _ in range(2)]
        urls = [server.url for server in servers]
        benchmark.on_servers(urls, tiny_folder(), tmp_path, connect=SendingHalf)
        for server in servers:
            # One load to begin with, and one for each timed version and the one before them.
            assert server.calls.count("collective_rpc") == benchmark.ROUNDS + 2
            assert server.calls.count("finish_weight_update") == benchmark.ROUNDS + 2
            assert not server.paused
    said = capsys.readouterr().out
    assert "vLLM, folder, 2 servers" in said
    assert "vLLM, transfer, 2 servers" in said
    assert said.count(" GB/s") == 2


@pytest.mark.slow
def test_folder_and_adapter_are_timed_against_plain_files(benchmark, tmp_path, capsys, monkeypatch):
    small = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 128}
    monkeypatch.setattr(benchmark, "SHAPE", benchmark.replace(benchmark.SHAPE, **small))
    benchmark.on_this_machine(6_000_000.0, tmp_path)
    said = capsys.readouterr().out
    assert said.count("GB, write: ") == said.count("GB, load: ") == 4, "two sizes by two paths"
    assert said.count(", plain write ") == said.count(", plain read ") == 4
    assert list(tmp_path.iterdir()) == []
