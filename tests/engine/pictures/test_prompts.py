"""Prompts with pictures have the ids and the pixel values of the model's own processor, over random conversations."""

import base64
import io
import random

import pytest
import torch
from PIL import Image
from tests.engine.picture_folders import FAMILIES, data_url, png, shown, write_folder
from transformers import PROCESSOR_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer
from transformers.image_processing_base import ImageProcessingMixin

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.errors import UsageError
from hud.trace import Continuation, ToolSpec

CONVERSATIONS = 200
KINDS = (
    "qwen3_5",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in FAMILIES if kind != "qwen3_5"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp(request.param)
    write_folder(place, request.param)
    return place


@pytest.fixture(scope="module")
def chat(folder):
    return ChatFormat(folder, DecoderConfig.from_folder(folder))


def processor_of(folder):
    """Return the class's own processor; its processor of videos would need torchvision."""
    kind = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(folder))]
    kind = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    parts = {
        "tokenizer": AutoTokenizer.from_pretrained(folder),
        "image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil"),
        "video_processor": ImageProcessingMixin(model_input_names=[]),
    }
    settings, _ = kind.get_processor_dict(folder)
    return kind.from_args_and_dict([parts[name] for name in kind.get_attributes()], settings)


def conversation(seed):
    random_ = random.Random(seed)
    messages = [{"role": "system", "content": "Be terse."}] if random_.random() < 0.3 else []
    turns = random_.randint(1, 4)
    for turn in range(turns):
        parts = [
            shown(png(random_.randint(0, 30)))
            if random_.random() < 0.45
            else {
                "type": "text",
                "text": "".join(random_.choices("abc .\n é😀", k=random_.randint(1, 12))),
            }
            for _ in range(random_.randint(1, 4))
        ]
        content = parts if random_.random() < 0.85 else f"text {turn}"
        messages.append({"role": "user", "content": content})
        if turn < turns - 1:
            messages.append({"role": "assistant", "content": f"ok {turn}"})
    return messages


def as_processors_take(messages, *, parts):
    images, taken = [], []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if parts else content
        else:
            images += [
                Image.open(io.BytesIO(base64.b64decode(part["image_url"]["url"].split(",")[1])))
                for part in content
                if part["type"] == "image_url"
            ]
            content = [part if part["type"] == "text" else {"type": "image"} for part in content]
        taken.append({"role": message["role"], "content": content})
    return taken, images


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_ids_and_pixels_are_the_processors(folder, chat):
    processor = processor_of(folder)
    template = (folder / "chat_template.jinja").read_text()
    pictures = 0
    for seed in range(CONVERSATIONS):
        messages = conversation(seed)
        prompt = chat.render(messages, [])
        taken, images = as_processors_take(messages, parts="idefics" in str(folder))
        text = processor.apply_chat_template(
            taken,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
            bos_token=processor.tokenizer.bos_token,
        )
        theirs = processor(
            text=[text], images=images or None, return_tensors="pt", add_special_tokens=False
        )
        assert prompt == theirs["input_ids"][0].tolist(), seed
        assert len(prompt.pictures) == len(images)
        pictures += len(images)
        if not images:
            continue
        for name, values in chat.pictures.processor.values(
            [picture.file for picture in prompt.pictures]
        ).items():
            assert torch.equal(values, theirs[name]), (seed, name)
    assert pictures > CONVERSATIONS


def talk():
    return [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, shown(png(1))]},
    ]


@pytest.mark.parametrize("folder", ["qwen3_5"], indirect=True)
def test_the_next_prompt_extends_the_ids_and_adds_the_pictures_of_results(chat):
    first = chat.render(talk(), [])
    sampled = [*chat.encode("Go on."), chat.end_id]
    messages = [
        *talk(),
        {"role": "assistant", "content": "Go on."},
        {"role": "user", "content": [shown(png(2)), {"type": "text", "text": "And now?"}]},
    ]
    continuation = Continuation(token_ids=[*first, *sampled], covered=2)
    second = chat.extend(continuation, messages, [])
    assert second is not None
    assert second[: len(first) + len(sampled)] == [*first, *sampled]
    assert second.pictures[0] == first.pictures[0]
    assert len(second.pictures) == 2
    assert second.pictures[1].start > len(first)
    assert second[second.pictures[1].start] == chat.pictures.processor.token


@pytest.mark.parametrize("folder", ["qwen3_5"], indirect=True)
def test_a_sampled_picture_token_ends_the_turn_and_the_next_prompt_is_rendered_anew(chat):
    first = chat.render(talk(), [])
    sampled = [*chat.encode("Go"), chat.pictures.processor.token]
    assert sampled[-1] in chat.stop_ids
    assert chat.decode(sampled) == "Go"
    messages = [*talk(), {"role": "assistant", "content": "Go"}, {"role": "user", "content": "?"}]
    continuation = Continuation(token_ids=[*first, *sampled], covered=2)
    assert chat.extend(continuation, messages, []) is None


@pytest.mark.parametrize("folder", ["qwen3_5"], indirect=True)
def test_a_spelled_picture_token_is_text(chat):
    prompt = chat.render([{"role": "user", "content": "a <|image_pad|> b"}], [])
    assert chat.pictures.processor.token not in prompt
    assert prompt.pictures == ()


@pytest.mark.parametrize("folder", ["qwen3_5", "gemma3", "idefics3"], indirect=True)
def test_pictures_of_tool_results_are_shown_whatever_the_template_does(chat):
    tool = ToolSpec(name="look", description="Look.")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look around."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "A page."}, shown(png(3))],
        },
    ]
    prompt = chat.render(messages, [tool])
    assert len(prompt.pictures) == 1
    assert "A page." in chat.tokenizer.decode(prompt, skip_special_tokens=False)


@pytest.mark.parametrize("folder", ["qwen3_5"], indirect=True)
@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://example.com/a.png", "data URLs"),
        ("data:image/png;base64,????", "not base64"),
        (data_url(b"no picture"), "no format that is read"),
        (data_url(png(4)[:80]), "cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused_by_a_sentence(chat, url, sentence):
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(UsageError, match=sentence):
        chat.render([{"role": "user", "content": [part]}], [])
