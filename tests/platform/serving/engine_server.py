"""Models and requests for tests of engines, and engines in processes of their own."""

import contextlib

from hud.trace import SamplingParams
from hud_platform.application import create_app
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenDelta, TokenEnd, TokenRequest
from hud_platform.store.tables import LOCAL_TEAM

TEXTS = ["red green blue yellow", "what colour is it?", "the answer is red"] * 3
SIZES = {
    "vocab_size": 300,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "max_context": 512,
}


@contextlib.asynccontextmanager
async def engine_of(home, kind, *slugs, **config):
    """Yield a platform whose engine is of a kind, and its models, made where they are not there yet."""
    platform = create_app(PlatformConfig(home, engine=kind, **config)).state.parts
    registry = platform.registry.of(LOCAL_TEAM)
    known = {model.slug for model in registry.models()}
    for slug in slugs or ("m",):
        if slug not in known:
            registry.create(slug, TEXTS, sizes=SIZES)
    try:
        yield platform, *(registry.model(slug) for slug in slugs or ("m",))
    finally:
        await platform.engine.stop()
        platform.close()


def request(tokens=8, prompt=(5, 6, 7), **fields):
    params = {name: fields.pop(name) for name in ("seed", "temperature", "top_k") if name in fields}
    return TokenRequest(
        list(prompt), SamplingParams(max_tokens=tokens, **params), frozenset(), **fields
    )


async def drawn(engine, model, asked, checkpoint=None):
    """Return everything that was drawn: ids, logprobs, alternatives, and the end."""
    ids, logprobs, top, end = [], [], [], None
    async for item in engine.stream(model, checkpoint, asked):
        assert end is None
        if isinstance(item, TokenDelta):
            assert len(item.token_ids) == len(item.logprobs) > 0
            ids += item.token_ids
            logprobs += item.logprobs
            top += item.top or []
        else:
            assert isinstance(item, TokenEnd)
            end = item
    return ids, logprobs, top, end
