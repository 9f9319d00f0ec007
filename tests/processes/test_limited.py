"""Processes with limits of memory and processor time."""

import os
import tempfile

import pytest

from hud.processes.limited import run_limited

LEAVES = "import os, signal, tempfile; tempfile.mkdtemp(); os.kill(os.getpid(), signal.SIG{signal})"


@pytest.mark.parametrize("signal", ["XCPU", "KILL"])
def test_a_process_that_a_limit_ends_leaves_no_temporary_folder(tmp_path, monkeypatch, signal):
    (tmp_path / "leaves.py").write_text(LEAVES.format(signal=signal))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    variables = {"PYTHONPATH": str(tmp_path)}
    assert run_limited("leaves", memory=1, seconds=1, variables=variables).returncode < 0
    assert os.listdir(tmp_path / "temporary") == []
