"""What several ranks train, for a test that starts them: `torchrun ranks_at_work.py FOLDER [CASE]`.

The same training is done by `trained(...)` in the test's own process, alone.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(
        2
    )  # Before the engine reads it: as many passes at the same time, on any machine.

from hud.engine.config import DecoderConfig
from hud.engine.learn import local_trainer
from hud.engine.learn.distributed import follow, leading, open_trainer
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.process_group import join, leave
from hud.engine.lora import LoraConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.errors import ConflictError, UsageError
from hud.learning.datums import Datum

VOCABULARY = 61
STEPS = 2
RATE = 1e-4

LOSSES = {
    "importance_sampling": {"token_mean": 1.0},
    "ppo": {"sequence_mean": 1.0, "entropy_coef": 0.01},
    "gspo": {"dr_grpo_length": 16.0},
    "cispo": {"kl_coef": 0.1, "token_mean": 1.0},
    "cross_entropy": {},
}
CASES = {
    **{f"full {loss}": (loss, {}) for loss in LOSSES},
    **{f"lora {loss}": (loss, {"lora": LoraConfig(rank=4)}) for loss in ("ppo", "cispo", "gspo")},
    "bfloat16": ("ppo", {"dtype": torch.bfloat16}),
    "bfloat16 lora": ("ppo", {"dtype": torch.bfloat16, "lora": LoraConfig(rank=4)}),
    "untied": ("ppo", {"tied": False}),
    "recomputed": ("ppo", {"options": TrainerOptions(recompute_layers=True)}),
    "8bit": ("ppo", {"options": TrainerOptions(OptimizerOptions(states="8bit", offload=True))}),
}


def decoder(seed=0, tied=True, dtype=torch.float32):
    torch.manual_seed(seed)
    config = DecoderConfig(
        model_type="qwen3",
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
    )
    made = ReferenceDecoder(config)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return made.to(dtype)


def batch(seed, sizes=(4, 3, 1)):
    """Groups that share a prompt: more sequences on one rank than on the other, and sometimes none at all."""
    rng = np.random.default_rng(seed)
    datums = []
    for group, size in enumerate(sizes):
        shared = rng.integers(0, VOCABULARY, 20 + 5 * group)
        for _ in range(size):
            rest = int(rng.integers(1, 24))
            mask = np.zeros(len(shared) + rest, np.float32)
            mask[len(shared) :] = rng.random(rest) < 0.7
            mask[len(shared)] = 1
            datums.append(
                Datum(
                    tokens=np.concatenate([shared, rng.integers(0, VOCABULARY, rest)]),
                    mask=mask,
                    logprobs=(mask * rng.normal(-4, 0.3, len(mask))).astype(np.float32),
                    advantages=mask * np.float32(rng.normal()),
                    weights=mask.copy(),
                    temperatures=np.ones(len(mask), np.float32),
                    traj_idx=len(datums),
                    group_idx=group,
                )
            )
    return datums


def whole_weights(decoder):
    return {name: tensor.detach().clone() for name, tensor in decoder.state_dict().items()}


def opened(loss, *, tied=True, dtype=torch.float32, lora=None, options=None):
    it = open_trainer(decoder(tied=tied, dtype=dtype), lora=lora, options=options)
    if loss == "cispo" and lora is None:
        it.take_reference(lambda: decoder(seed=1, tied=tied, dtype=dtype))
    return it


def trained(case, *, resume=None):
    """Train some steps, each of two calls, the second with a single sequence: one rank then has none."""
    loss, options = CASES[case]
    it = opened(loss, **options)
    if resume is not None:
        it.decoder.load_state_dict(resume["weights"])
        it.load_state_dict(resume["state"])
    first = it.step
    metrics = []
    for seed in range(first, first + STEPS):
        found = it.forward_backward(batch(seed), loss, LOSSES[loss])
        computed = it.last_logprobs
        found |= {f"alone/{k}": v for k, v in _second(it, seed, loss).items()}
        metrics.append(found | it.optim_step(RATE, max_grad_norm=1.0, weight_decay=0.1))
    return {
        "weights": whole_weights(it.decoder),
        "state": it.state_dict(),
        "metrics": metrics,
        "logprobs": [*computed, *it.forward(batch(9))],
    }


def _second(it, seed, loss):
    return it.forward_backward(batch(100 + seed, sizes=(1,)), loss, LOSSES[loss])


def custom():
    """Gradients of a caller's own loss."""
    it = opened("ppo")
    datums = batch(0)
    it.backward(datums, [datum.mask * 0.5 for datum in datums])
    return it.gradients()


def refused():
    """What ranks refuse, they refuse together, and go on."""
    it = opened("ppo")
    said = []
    for wrong in (
        lambda: it.optim_step(1e-3),
        lambda: it.forward_backward(batch(0), "ppo", {"kl_coef": 0.1}),
        lambda: it.forward_backward(spoiled(), "cross_entropy"),
        lambda: it.forward_backward(headless(), "ppo"),
    ):
        try:
            wrong()
        except (ConflictError, UsageError) as error:
            said.append(str(error))
    it.forward_backward([], "ppo")
    it.forward_backward(batch(0), "ppo")
    it.optim_step(1e-3)
    return said, it.step


def spoiled():
    datums = batch(0)
    datums[-1].weights[-1] = float("nan")
    return datums


def headless():
    datums = batch(0)
    datums[-1].mask[0] = 1
    return datums


def everything(folder):
    found = {case: trained(case) for case in CASES}
    for case in ("full ppo", "lora ppo", "bfloat16"):
        alone = torch.load(folder / f"{case}.pt", weights_only=False)
        found[f"{case} resumed"] = trained(case, resume=alone)
    return {**found, "custom": custom(), "refused": refused()}


def main(folder, only=None):
    ranks = join("cpu")
    if "OMP_NUM_THREADS" not in os.environ:
        # However few tokens there are, they are worth passes at the same time.
        local_trainer.APART_FROM = 1
    if ranks.index == 0:
        with leading(ranks):
            found = everything(folder) if only is None else {only: trained(only)}
        torch.save(found, folder / "found.pt")
    else:
        follow(ranks)
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
