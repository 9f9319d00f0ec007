"""A real `hud up` with a tiny model, for the tests of Tinker's client."""

import torch
from tests.fleet.live_server import LiveServer

TEXTS = ["red green blue yellow", "what colour is it?", "the answer is red"] * 3
SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 2,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 512,
}


def started(home):
    """Start a server with the model `m`."""
    server = LiveServer(home, "--workers", "0")
    server.start()
    with server.client() as api:
        body = {"name": "m", "texts": TEXTS, "sizes": SIZES}
        assert api.post("/v2/models/create", json=body).status_code == 200
    return server


def folder_of(server, slug="m"):
    """Return the folder of a model's base weights."""
    with server.client() as api:
        model = api.get("/v2/models/resolve", params={"model": slug}).json()
    return server.home / "models" / model["id"].replace("-", "") / "base"


def logprobs_of(model, ids):
    """Return the logprobs of every token but the first under a model of transformers, with their gradient."""
    logits = model(torch.tensor([ids[:-1]])).logits[0]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None]).squeeze(-1)
