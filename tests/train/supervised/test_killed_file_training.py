"""`hud train MODEL --from FILE` killed at random moments and started again: the weights of a training that was not, every step once."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.train.supervised.test_killed_training import assert_same_weights
from tests.train.test_client_training import SIZES, TEXTS, home

from hud.client import connect

__all__ = ["home"]
COMMAND = [sys.executable, "-m", "hud.cli.main", "train"]
LONGEST_SECONDS = 900.0


def write_rows(path, count):
    """Write conversations of a digit that is said again."""
    rng = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            word = rng.choice("0123456789") * rng.randint(1, 6)
            messages = [
                {"role": "user", "content": f"say {word}"},
                {"role": "assistant", "content": word},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


async def steps_of(model):
    """Return the numbers of the steps on record, over all runs of the model."""
    runs = (await connect().get("/v2/training-runs"))["items"]
    of_model = [run["id"] for run in runs if run["config"]["model"] == model]
    assert len(of_model) <= 1, "a continued training is the same run"
    pages = [await connect().get(f"/v2/training-runs/{run}/steps") for run in of_model]
    return [row["step"] for page in pages for row in page["items"]]


async def killed_and_whole(folder, rows, batch, kills):
    """Train `m` in one go and `n` with a kill -9 at random moments; return the steps on record after each kill."""
    await connect().post("/v2/models/create", {"name": "n", "texts": TEXTS, "sizes": SIZES})
    write_rows(folder / "rows.jsonl", rows)
    options = ["--from", str(folder / "rows.jsonl"), "--batch", str(batch), "--lr", "1e-2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(model):
        command = [*COMMAND, model, *options]
        with (folder / "output.txt").open("w") as output:
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def finish(model):
        assert start(model).wait(LONGEST_SECONDS) == 0, (folder / "output.txt").read_text()

    began = time.monotonic()
    finish("m")
    seconds = time.monotonic() - began
    rng, on_record = random.Random(7), []
    for _ in range(kills):
        process = start("n")
        try:
            process.wait(rng.uniform(0.1, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        on_record.append(len(await steps_of("n")))
    finish("n")
    steps = await steps_of("n")
    assert steps == list(range(-(-rows // batch))) == await steps_of("m")
    assert on_record == sorted(on_record), "no step on record is lost"
    await assert_same_weights("m", "n")
    return on_record


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_training_from_a_file_that_is_killed_ends_with_the_same_weights(home, tmp_path):
    await killed_and_whole(tmp_path, rows=60, batch=2, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_training_from_five_thousand_rows_that_is_killed_ends_with_the_same_weights(
    home, tmp_path
):
    on_record = await killed_and_whole(tmp_path, rows=5000, batch=20, kills=6)
    print("steps on record after each kill:", on_record)
    assert any(0 < count < 250 for count in on_record), "a kill came between two steps"
