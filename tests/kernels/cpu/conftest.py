"""The tests of this folder are about the CPU's kernels: they switch them on, whatever the suite runs with."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def kernels():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_CPU_KERNELS", "1")
        yield
