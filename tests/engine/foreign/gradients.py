"""Gradients of a decoder against those of plain `transformers`."""

import torch


def compare(ours, theirs):
    """Hold that gradients are equal but for rounding; None is no gradient."""
    if ours is None or theirs is None:
        assert ours is None or not ours.any()
        assert theirs is None or not theirs.any()
        return
    largest = float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, atol=1e-3 * largest + 1e-5, rtol=0)
