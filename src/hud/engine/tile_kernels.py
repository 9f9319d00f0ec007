"""What `tiles` computes between matrix products, compiled in the same way as `kernels`."""

from __future__ import annotations

from hud.engine.kernels import LOG2_E, Floats, Integers, compiled, f32, weigh


@compiled
def gather(x: Floats, tokens: Integers, factor: float, out: Floats) -> None:
    """Write x (T, K, W) of tokens (B, N), times a factor, into `out` (B, K, N, W); 0 for tokens below 0."""
    for row in range(out.shape[0]):
        for head in range(out.shape[1]):
            for place in range(out.shape[2]):
                token = tokens[row, place]
                taken, into = x[max(token, 0), head], out[row, head, place]
                times = f32(factor) if token >= 0 else f32(0)
                for number in range(len(into)):
                    into[number] = taken[number] * times


@compiled
def scatter(x: Floats, tokens: Integers, factor: float, out: Floats) -> None:
    """Add x (B, K, N, W), times a factor, to what `out` (T, K, W) has of tokens (B, N), those below 0 left out."""
    for row in range(x.shape[0]):
        for head in range(x.shape[1]):
            for place in range(x.shape[2]):
                token = tokens[row, place]
                if token >= 0:
                    given, into = x[row, head, place], out[token, head]
                    for number in range(len(into)):
                        into[number] += given[number] * f32(factor)


@compiled
def shares(scores: Floats, shown: Integers) -> None:
    """Replace scores (B, K, N, G, M) by the shares of their powers of 2 in those of the first `shown` (B, N); others by 0."""
    for row in range(scores.shape[0]):
        for head in range(scores.shape[1]):
            for place in range(scores.shape[2]):
                count = shown[row, place]
                for one in range(scores.shape[3]):
                    of_query = scores[row, head, place, one]
                    if count > 0:
                        weigh(of_query[:count])
                    for key in range(count, len(of_query)):
                        of_query[key] = f32(0)


@compiled
def shares_gradient(shares: Floats, g: Floats) -> None:
    """Replace the gradient g (B, N, M) of shares by that of the scores that they come from: ln 2 · p (g - Σ p g)."""
    for row in range(g.shape[0]):
        for query in range(g.shape[1]):
            p, to = shares[row, query], g[row, query]
            along = f32(0)
            for key in range(len(p)):
                along += p[key] * to[key]
            for key in range(len(p)):
                to[key] = p[key] * (to[key] - along) / LOG2_E
