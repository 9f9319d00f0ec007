"""Rollout workers that are vLLM servers, asked over HTTP.

    wire        one server: its API as requests and answers
    routing     which of several servers knows a prompt's beginning
    publishing  weights as files that servers load, and how to tell that they have them
    transfer    weights as tensors that are sent to them instead
    members     one server of a fleet, and how it is given weights
    fleet       several servers: which answer, which have the newest weights, which is to draw what
    sampler     turns drawn by a fleet: what a policy that is trained here samples with

Written from vLLM's published API; `docs/decisions/0009-vllm-over-http.md` says of which version.
"""
