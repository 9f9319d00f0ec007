"""The losses a second time: float64, one token after another, plain Python, nothing shared with the code.

A sequence is a list of (lp, q, A, w, lp_ref, H); `loss` returns one number.
"""

import math


def _ratio(lp, q):
    return math.exp(max(-20.0, min(20.0, lp - q)))


def _clamp(x, lo, hi):
    return lo if x < lo else hi if x > hi else x


def _correction(sequence, t, keys):
    lp, q = sequence[t][:2]
    weight = 1.0
    if "tis_token_cap" in keys:
        weight *= min(_ratio(lp, q), keys["tis_token_cap"])
    if "tis_sequence_cap" in keys:
        total = 0.0
        for token in sequence:
            total += max(-20.0, min(20.0, token[0] - token[1]))
        weight *= min(math.exp(_clamp(total, -20, 20)), keys["tis_sequence_cap"])
    if "icepop_low" in keys and not keys["icepop_low"] <= _ratio(lp, q) <= keys["icepop_high"]:
        weight = 0.0
    if "sequence_mask_low" in keys:
        mean = sum(math.log(_ratio(token[0], token[1])) for token in sequence) / len(sequence)
        if not keys["sequence_mask_low"] <= math.exp(mean) <= keys["sequence_mask_high"]:
            weight = 0.0
    if "outlier_mask_low" in keys:
        for token in sequence:
            if (
                not keys["outlier_mask_low"]
                <= _ratio(token[0], token[1])
                <= keys["outlier_mask_high"]
            ):
                weight = 0.0
    return weight


def _kl(d, estimator):
    if estimator == 1:
        return d
    if estimator == 2:
        return d * d / 2
    return math.exp(-d) - 1 + d


def _clipped(r, A, keys):
    value = min(r * A, _clamp(r, keys["lo"], keys["hi"]) * A)
    return max(value, keys["dual_clip"] * A) if A < 0 and "dual_clip" in keys else value


def token_loss(name, sequence, t, keys):
    lp, q, A, w = sequence[t][:4]
    r = _ratio(lp, q)
    if name == "cross_entropy":
        return -w * lp
    if name == "importance_sampling":
        return -r * A
    if name == "ppo":
        return -_clipped(r, A, keys)
    if name == "cispo":
        return -_clamp(r, keys["lo"], keys["hi"]) * lp * A
    if name == "dro":
        return -(lp * A - keys["beta"] / 2 * (lp - q) ** 2)
    if name == "gspo":
        s = math.exp(sum(token[0] - token[1] for token in sequence) / len(sequence))
        return -_clipped(s, A, keys)
    if name == "dppo":
        moved = math.exp(lp) - math.exp(q)
        dropped = (A > 0 and moved > keys["high"]) or (A < 0 and moved < -keys["low"])
        return (0.0 if dropped else -r * A) + keys["square"] * (lp - q) ** 2
    raise AssertionError(name)


def loss(name, sequences, keys):
    total = 0.0
    for sequence in sequences:
        for t in range(len(sequence)):
            lp, q, A, w, ref, entropy = sequence[t]
            shaped = list(sequence)
            if keys.get("kl_advantage_coef"):
                shaped[t] = (lp, q, A - keys["kl_advantage_coef"] * (lp - ref), w, ref, entropy)
            value = token_loss(name, shaped, t, keys) * _correction(sequence, t, keys)
            value += keys.get("kl_coef", 0.0) * _kl(lp - ref, keys.get("kl_estimator", 3))
            value -= keys.get("entropy_coef", 0.0) * entropy
            if keys.get("sequence_mean"):
                value /= len(sequence)
            if keys.get("dr_grpo_length"):
                value /= keys["dr_grpo_length"]
            total += value
    return total
