"""Bounds on how far two orders of the same float sums may differ."""

import torch

from hud.engine.config import DecoderConfig


def logprob_tolerance(
    config: DecoderConfig, *, context: int, dtype: torch.dtype = torch.float32
) -> float:
    """Return a bound on the difference of two log-probabilities of one token, in nats.

    Both come from the same weights by sums in different orders. A sum of n terms of size 1 is off by about
    sqrt(n) * u, with u half the spacing of `dtype` at 1 (Higham, Accuracy and Stability of Numerical Algorithms, 2.8:
    independent rounding errors), and the errors of the sums of all layers add up. `context` is the largest number of
    tokens attended to. The factor 4 is for logits and activations larger than 1.
    """
    in_layer = [
        config.hidden_size,  # Queries, keys and values.
        config.head_dim,  # Scores.
        context,  # The softmax, and the values that it weighs.
        config.num_attention_heads * config.head_dim,  # The output of attention.
        config.hidden_size,  # Gate and up.
        config.intermediate_size,  # Down.
    ]
    sums = in_layer * config.num_hidden_layers + [config.hidden_size, config.vocab_size]
    unit = torch.finfo(dtype).eps / 2
    return 4 * unit * sum(length**0.5 for length in sums)


def sum_tolerance(values: torch.Tensor, *, terms: int, dtype: torch.dtype = torch.float32) -> float:
    """Return a bound on the difference of `values` and of the same sums of `terms` numbers in another order.

    In proportion to the largest of `values`: where terms cancel, a small sum has the error of its terms.
    """
    unit = torch.finfo(dtype).eps / 2
    return 4 * unit * terms**0.5 * float(values.abs().max())
