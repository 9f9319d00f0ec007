"""A small model that the disk cannot hold is an error of the disk, whichever of its files it was."""

import contextlib
import resource

import pytest

from hud.engine.tiny_model import create_tiny

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}


@contextlib.contextmanager
def files_of_at_most(size):
    """Let this process write files of at most `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("most", [1_000, 40_000])
def test_a_disk_without_room_is_an_oserror(tmp_path, most):
    with files_of_at_most(most), pytest.raises(OSError, match="too large|No space"):
        create_tiny(tmp_path / "tiny", TEXTS, **SIZES)
