"""A small model that the disk cannot hold is an error of the disk, whichever of its files it was."""

import multiprocessing
import resource

import pytest

TEXTS = ["red green blue yellow", "what colour is it?"] * 3
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1}


def kind_of_error(folder, most):
    """Return the kind of error of a process that may write files of `most` bytes."""
    from hud.engine.tiny_model import create_tiny

    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        create_tiny(folder, TEXTS, **SIZES)
    except Exception as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("most", [1_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_a_disk_without_room_is_an_oserror(tmp_path, most):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(kind_of_error, (tmp_path / "tiny", most)) == "OSError"
