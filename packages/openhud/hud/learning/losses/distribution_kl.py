"""The KL to a reference policy over whole distributions: exact, or over the reference's likeliest tokens and all others as one.

Generalized knowledge distillation (arXiv 2306.13649) minimizes it at each token that the student sampled; the gradient is that of
the student's distribution there, and none of sampling. Joining tokens never raises a KL (data processing inequality): over k tokens and the others it
is a lower bound, and exact where k is the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOWEST = -100.0
"""Least logprob of a reference, natural log: its tokens of probability 0 leave the KL finite."""


def joined_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return (N, k + 1) logprobs under logits (N, V): of the tokens (N, k), and last of all others together.

    A token beyond V, as the reference's larger vocabulary may have it, is -inf, and so are the others where there are none.
    """
    beyond = int(tokens.max()) + 1 - logits.shape[-1] if tokens.numel() else 0
    if beyond > 0:
        logits = torch.nn.functional.pad(logits, (0, beyond), value=-torch.inf)
    others = logits.scatter(-1, tokens, -torch.inf).logsumexp(-1, keepdim=True)
    joined = torch.cat((logits.gather(-1, tokens), others), -1)
    return joined - logits.logsumexp(-1, keepdim=True)


def distribution_kl(logits: Tensor, tokens: Tensor, reference: Tensor) -> Tensor:
    """Return (N,): KL(policy ‖ reference) in nats, the policy's distributions being the softmax of logits (N, V).

    `reference` (N, k + 1) is `joined_logprobs` of the tokens (N, k) under the reference.
    """
    own = joined_logprobs(logits, tokens)
    present = own > -torch.inf
    # 0 log 0 is 0, and its gradient as well.
    own = own.masked_fill(~present, 0.0)
    gap = own - reference.clamp(min=LOWEST).masked_fill(~present, 0.0)
    return (present * own.exp() * gap).sum(-1)
