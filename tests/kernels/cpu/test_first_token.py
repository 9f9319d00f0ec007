"""What a process needs before its first token: code that an earlier one compiled, and no compiler of torch's."""

import os
import subprocess
import sys

import pytest
from tests.engine.random_decoder import random_decoder

from hud.engine.pretrained import save_decoder

PROGRAM = """
import sys
from pathlib import Path

import torch
from hud_kernels.cpu.attention_kernels import attend, attend_gradient
from hud_kernels.cpu.decode_kernels import draw_on, forward, project
from hud.engine.pretrained import load_decoder
from hud_kernels.cpu.fused_decoder import FusedDecoder
from hud_kernels.cpu.passes import CpuLayers
from hud.engine.sample.kv_cache import CacheSize, KVCache

decoder = load_decoder(Path(sys.argv[1]))
size = CacheSize.within(1 << 20, decoder.config, torch.float32, slots=1, max_context=8)
computing = FusedDecoder(decoder)
cache = KVCache(decoder.config, size, torch.float32, torch.device("cpu"))
computing.logits(computing.run([[1]], [[0]], [0], cache))
computing.draw_on([1], [[0]], [0], cache, [1.0], [[0.5]], [1], frozenset(), until_end=False)
tokens = torch.arange(3)
layers = CpuLayers(decoder.config)
decoder.hidden_packed(tokens, tokens, torch.tensor([0, 3]), layers=layers).sum().backward()
used = forward, project, draw_on, attend, attend_gradient
print(*(sum(one.stats.cache_misses.values()) for one in used))
"""


@pytest.mark.slow
def test_what_one_process_compiled_the_next_one_finds(tmp_path):
    save_decoder(random_decoder(), tmp_path / "model")
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "model")],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert "0" not in found[0].split()
    assert found[1] == "0 0 0 0 0\n"


def test_a_policy_is_loaded_without_a_compiler(tmp_path):
    save_decoder(random_decoder(), tmp_path)
    program = """
import sys
from pathlib import Path
from hud.engine.pretrained import load_decoder

load_decoder(Path(sys.argv[1]))
print("torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "False"
