"""Classes with pictures sample and train as plain `transformers` computes them."""

import asyncio
import base64
import inspect

import numpy as np
import pytest
import torch
from tests.engine.foreign.gradients import compare
from tests.engine.picture_folders import FAMILIES, png, shown, write_folder
from transformers import AutoModelForImageTextToText

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.foreign import verdicts
from hud.engine.foreign.verdicts import Verdict
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig, load_adapter, lora_layers, save_adapter
from hud.engine.pretrained import load_decoder, load_weights, save_decoder
from hud.engine.sample import scheduler
from hud.engine.sample.sampler import Sampler
from hud.errors import UsageError
from hud.learning.datums import Datum
from hud.trace import Continuation, SamplingParams
from hud.trace.sampled.pictures import Picture

PATHS = {"gemma3": "turns", "qwen3_5": "packed", "qwen3_5_moe": "packed"}
KINDS = (
    "qwen3_vl",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in FAMILIES if kind != "qwen3_vl"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    """A folder of a class whose verdict is on record: the check has tests of its own."""
    monkeypatch.setattr(verdicts, "checked", lambda _: Verdict(PATHS.get(request.param, "chunks")))
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    place = tmp_path / request.param
    write_folder(place, request.param)
    return place


def plain(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()


def plain_logprobs(model, processor, ids, pictures):
    """Return the logprobs of a sequence's tokens but the first."""
    tokens = torch.tensor([ids[:-1]])
    inputs = {}
    if pictures:
        kinds = (tokens == processor.token).long()
        inputs = dict(processor.values([picture.file for picture in pictures]))
        inputs |= {"mm_token_type_ids": kinds, "token_type_ids": kinds}
    names = inspect.signature(type(model).forward).parameters
    inputs = {name: value for name, value in inputs.items() if name in names}
    logits = model(input_ids=tokens, use_cache=False, **inputs).logits[0]
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]


def sample(sampler, *prompts):
    async def turns():
        return await asyncio.gather(
            *(
                sampler.sample(
                    prompt, SamplingParams(max_tokens=6, seed=seed), frozenset(), prompt.pictures
                )
                for seed, prompt in enumerate(prompts)
            )
        )

    return asyncio.run(turns())


def talk(*files, text="What is this?"):
    return {"role": "user", "content": [*map(shown, files), {"type": "text", "text": text}]}


def as_datum(prompt, turn):
    mask = np.array([0.0] * len(prompt) + [1.0] * len(turn.token_ids), np.float32)
    return Datum(
        tokens=np.array([*prompt, *turn.token_ids]),
        mask=mask,
        logprobs=np.array([0.0] * len(prompt) + turn.logprobs, np.float32),
        advantages=mask,
        weights=mask,
        temperatures=np.ones_like(mask),
        pictures=prompt.pictures,
    )


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_turns_are_sampled_as_transformers_computes_them(folder):
    model, decoder = plain(folder), load_decoder(folder)
    chat = ChatFormat(folder, decoder.config)
    sampler = Sampler(decoder, slots=3)
    words = [{"role": "user", "content": "Only words."}]
    opening = [talk(png(1)), talk(png(2), png(3)), words[0]]
    prompts = [chat.render([message], []) for message in opening]
    turns = list(sample(sampler, *prompts))
    # Of equal ids and other pixels.
    same_ids = [talk(png(7, 20, 20)), talk(png(8, 20, 20))]
    prompts += [chat.render([message], []) for message in same_ids]
    assert prompts[3] == prompts[4]
    turns += sample(sampler, prompts[3])
    turns += sample(sampler, prompts[4])
    assert turns[4].cached_tokens == 0
    answered = [opening[0], {"role": "assistant", "content": "So."}, talk(png(4), text="And this?")]
    so_far = [*prompts[0], *_text(turns[0], chat)]
    prompts.append(chat.extend(Continuation(so_far, 2), answered, []))
    turns += sample(sampler, prompts[5])
    sampler.close()
    assert turns[5].cached_tokens >= len(prompts[0])
    for prompt, turn in zip(prompts, turns, strict=True):
        with torch.no_grad():
            theirs = plain_logprobs(
                model, chat.pictures.processor, [*prompt, *turn.token_ids], prompt.pictures
            )
        theirs = theirs[len(prompt) - 1 :]
        torch.testing.assert_close(torch.tensor(turn.logprobs), theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("folder", ["qwen3_5"], indirect=True)
def test_a_native_class_shares_prompts_with_pictures_and_cuts_these(folder, monkeypatch):
    monkeypatch.setattr(scheduler, "CHUNK_TOKENS", 7)  # Less than a picture has tokens.
    model, decoder = plain(folder), load_decoder(folder)
    chat = ChatFormat(folder, decoder.config)
    sampler = Sampler(decoder, slots=6)
    messages = [talk(png(1, 60, 60), png(2)), talk(text="Only words, and no picture.")]
    group, words = (chat.render([message], []) for message in messages)
    other = chat.render([talk(png(3, 60, 60), png(2))], [])
    assert group.pictures[0].tokens > 7
    assert group[: other.pictures[0].start + 9] == other[: other.pictures[0].start + 9]
    prompts = [group, group, words, other, group]
    turns = sample(sampler, *prompts)
    sampler.close()
    cached = [turn.cached_tokens for turn in turns]
    assert (cached[1], cached[4]) == (len(group) - 1, len(group) - 1)
    assert cached[3] <= other.pictures[0].start
    for prompt, turn in zip(prompts, turns, strict=True):
        ids = [*prompt, *turn.token_ids]
        with torch.no_grad():
            theirs = plain_logprobs(model, chat.pictures.processor, ids, prompt.pictures)
        theirs = theirs[len(prompt) - 1 :]
        torch.testing.assert_close(torch.tensor(turn.logprobs), theirs, atol=1e-4, rtol=0)


def _text(turn, chat):
    return [token for token in turn.token_ids if token != chat.pictures.processor.token]


@pytest.mark.parametrize("folder", KINDS, indirect=True)
@pytest.mark.parametrize("training", ["full", "adapter", "adapter and tower"])
def test_a_training_step_has_the_gradient_of_transformers_and_is_saved_and_loaded(
    folder, tmp_path, training
):
    model, decoder = plain(folder), load_decoder(folder)
    chat = ChatFormat(folder, decoder.config)
    lora = None
    if training != "full":
        targets = ("q_proj", "o_proj", "qkv", "up_proj")
        targets = tuple(_present(decoder, targets))
        lora = LoraConfig(rank=2, targets=targets, tower="tower" in training)
    trainer = LocalTrainer(decoder, lora=lora)
    sampler = Sampler(decoder, slots=2)
    prompts = [chat.render([message], []) for message in (talk(png(1)), talk(png(2), png(3)))]
    turns = sample(sampler, *prompts)
    sampler.close()
    datums = [as_datum(*pair) for pair in zip(prompts, turns, strict=True)]
    for datum, logprobs in zip(datums, trainer.forward(datums), strict=True):
        np.testing.assert_allclose(logprobs, datum.logprobs * datum.mask, atol=1e-4)
    trainer.forward_backward(datums)
    model.requires_grad_(True).zero_grad()
    for datum in datums:
        ids = datum.tokens.tolist()
        logprobs = plain_logprobs(model, chat.pictures.processor, ids, datum.pictures)
        # At the policy that sampled, the ratio's gradient is that of the logprob.
        (-(logprobs * torch.tensor(datum.mask[1:])).sum()).backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    if lora is None:
        for name, parameter in decoder.named_parameters():
            compare(parameter.grad, theirs[name.removeprefix("causal.")])
        tower = [name for name in theirs if "visi" in name or "visual" in name]
        assert any(theirs[name] is not None and theirs[name].any() for name in tower)
    adapted = lora_layers(decoder)
    for name, layer in adapted.items():
        weight = theirs[f"{name.removeprefix('causal.')}.weight"]
        compare(layer.lora_B.grad, layer.scale * weight @ layer.lora_A.detach().T)
    if lora is not None:
        assert any(name.startswith(decoder.tower_modules) for name in adapted) == lora.tower
    before = trainer.forward(datums)
    trainer.optim_step(1e-2)
    after = trainer.forward(datums)
    assert max(np.abs(one - two).max() for one, two in zip(before, after, strict=True)) > 1e-3
    place = tmp_path / "trained"
    fresh = load_decoder(folder)
    if lora is None:
        save_decoder(decoder, place)
        load_weights(fresh, place)
        check_saved(place, chat, datums, after)
    else:
        place.mkdir()
        save_adapter(decoder, lora, place)
        loaded = load_adapter(fresh, place)
        assert loaded.tower == lora.tower
    again = LocalTrainer(fresh, lora=lora).forward(datums)
    for one, two in zip(again, after, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def check_saved(place, chat, datums, after):
    """Plain transformers computes the saved folder's logprobs."""
    model = plain(place)
    for datum, ours in zip(datums, after, strict=True):
        ids = datum.tokens.tolist()
        with torch.no_grad():
            theirs = plain_logprobs(model, chat.pictures.processor, ids, datum.pictures)
        theirs = theirs.numpy() * datum.mask[1:]
        np.testing.assert_allclose(ours[1:], theirs, atol=1e-4)


@pytest.mark.parametrize("folder", ["qwen3_vl"], indirect=True)
def test_a_picture_without_its_tokens_is_refused_and_so_are_tokens_without_their_picture(folder):
    decoder = load_decoder(folder)
    chat = ChatFormat(folder, decoder.config)
    prompt = chat.render([talk(png(1))], [])
    sampler = Sampler(decoder, slots=2)
    try:
        with pytest.raises(UsageError, match="stand for pictures"):
            asyncio.run(sampler.sample(list(prompt), SamplingParams(), frozenset()))
        with pytest.raises(UsageError, match="is not where its tokens are"):
            asyncio.run(sampler.sample(prompt[5:], SamplingParams(), frozenset(), prompt.pictures))
    finally:
        sampler.close()
    trainer = LocalTrainer(decoder)
    mask = np.zeros(len(prompt), np.float32)
    mask[-1] = 1
    empty = np.zeros_like(mask)
    datum = Datum(np.array(prompt), mask, empty, mask, mask, np.ones_like(mask))
    with pytest.raises(UsageError, match="Datum 0 cannot be trained on"):
        trainer.forward_backward([datum])


@pytest.mark.parametrize("folder", ["qwen3_vl"], indirect=True)
def test_pixels_that_the_processor_makes_no_longer_are_refused(folder):
    decoder = load_decoder(folder)
    chat = ChatFormat(folder, decoder.config)
    prompt = chat.render([talk(png(1))], [])
    other = prompt.pictures[0].model_copy(update={"data": base64.b64encode(png(2)).decode()})
    assert isinstance(other, Picture)
    bounds = torch.tensor([0, len(prompt)])
    with pytest.raises(UsageError, match="sampled with other pixels"):
        decoder.hidden_with_pictures(torch.tensor(prompt), bounds, [[other]])


def _present(decoder, names):
    present = {
        name.rpartition(".")[2]
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    return [name for name in names if name in present]
