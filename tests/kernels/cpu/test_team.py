"""Threads of a team claim each unit once, those of libgomp as those of its own."""

import pytest
import torch

from hud_kernels.cpu import team
from hud_kernels.cpu.layer_kernels import kernels_for


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_row_is_computed_once(threads, own, monkeypatch):
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: threads)
    if own:
        monkeypatch.setattr(team, "_gomp_parallel", lambda: None)
    both, out = torch.randn(203, 64), torch.empty(203, 32)
    team.run(kernels_for(torch.float32).gate, 64, out, *both.chunk(2, dim=1), 203, 32, 64)
    torch.testing.assert_close(out, torch.nn.functional.silu(both[:, :32]) * both[:, 32:])


def test_torch_computes_with_a_team_on_linux():
    if not torch.backends.openmp.is_available():
        pytest.skip("this torch has no OpenMP")
    assert team._gomp_parallel() is not None
