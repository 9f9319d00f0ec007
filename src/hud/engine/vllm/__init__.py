"""Sampling by vLLM servers over HTTP.

    server           one server's HTTP API
    publication      a version of the weights as files that servers load, and probes that verify it
    weight_transfer  weights sent as tensors instead
    replica          one server of a fleet, and how its weights are updated
    fleet            several servers: health, weights, and routing of turns
    sampler          the `TurnSampler` of a policy that is trained here and sampled by a fleet

Written from vLLM's published API; `docs/decisions/0009-vllm-over-http.md` says of which version.
"""
