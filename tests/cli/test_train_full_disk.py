"""A disk that fills up while `hud train` runs: a sentence, exit code 2, and the same command goes on once there is room."""

import errno
import re
import subprocess
import sys

import pytest
import torch
from tests.cli.test_models_command import CREATE, TASKS

from hud.cli.main import report
from hud.engine.models.tensor_file import write_tensors

MAY_MOUNT = (
    subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    ).returncode
    == 0
    if sys.platform == "linux"
    else False
)

# Runs in a mount namespace of its own, where the store lies on a small disk.
ON_A_SMALL_DISK = """
import os, shutil, subprocess, sys
home = os.environ["HUD_HOME"]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", home], check=True)
from hud.cli.main import run
create, train, free = sys.argv[1:]
assert run(create.split()) == 0
filler = os.path.join(home, "filler")
with open(filler, "wb") as file:
    file.write(bytes(shutil.disk_usage(home).free - (int(free) << 10)))
print("full:", run(train.split()), flush=True)
os.remove(filler)
print("again:", run(train.split()), flush=True)
"""
TRAIN = "train tiny tasks.py --steps 1 --group 2 --max-tokens 4 --tasks-per-step 4"


@pytest.mark.slow
@pytest.mark.skipif(not MAY_MOUNT, reason="needs a mount namespace")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("free_kib", [0, 60, 200])
def test_training_says_that_the_disk_is_full_and_goes_on_when_it_is_not(
    tmp_path, monkeypatch, free_kib
):
    (tmp_path / "home").mkdir()
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", ON_A_SMALL_DISK, CREATE, TRAIN, str(free_kib)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "full: 2" in done.stdout, done.stdout + done.stderr
    assert "again: 0" in done.stdout, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    # The journal's sentence, the store's, or the engine's: whichever writes first.
    assert re.search("No space left|disk is full|no room on the disk", line)
    assert "Free some" in line
    assert "Traceback" not in done.stderr


def test_a_weight_file_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file") as raised:
        write_tensors({"a": torch.zeros(8)}, tmp_path / "none" / "file")
    assert raised.value.errno == errno.ENOENT


def test_no_room_anywhere_is_a_sentence(capsys):
    error = OSError(errno.ENOSPC, "No space left on device", "/there/file")
    assert report(error, ["models", "export"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "/there/file" in said
