"""What a process needs before its first token: code that an earlier one compiled, and no compiler of torch's."""

import os
import subprocess
import sys

from tests.engine.random_decoder import random_decoder

from hud.engine.folder import save_decoder

PROGRAM = """
import numpy as np
from hud.engine.kernels import head_kernels

kernels = head_kernels(8, 2, True)
page, out = np.zeros((1, 1, 4, 8), np.float32), np.empty((1, 16), np.float32)
kernels.attend(np.zeros((1, 2, 8), np.float32), page, page, np.zeros((1, 1), np.int64), np.ones(1, np.int64), out)
angle = np.ones((1, 4), np.float32)
kernels.place(
    np.zeros((1, 32), np.float32), np.ones((3, 8), np.float32), 1e-5, angle, angle, page.reshape(4, 8),
    page.reshape(4, 8), np.zeros((1, 1), np.int64), np.empty((1, 2, 8), np.float32),
)
print(sum(sum(one.stats.cache_misses.values()) for one in (kernels.attend, kernels.place)))
"""


def test_what_one_process_compiled_the_next_one_finds(tmp_path):
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert [int(misses) for misses in found] == [2, 0]


def test_a_policy_is_loaded_without_a_compiler(tmp_path):
    save_decoder(random_decoder(), tmp_path)
    program = """
import sys
from pathlib import Path
from hud.engine.folder import load_decoder

load_decoder(Path(sys.argv[1]))
print("torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
