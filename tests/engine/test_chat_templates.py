"""The chat templates and special tokens of a folder are chosen as `transformers` chooses them."""

import json
import shutil

import pytest
from tests.engine.tiny_policy import TOOLS, tiny_folder
from transformers import AutoTokenizer

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import Policy
from hud.errors import StoreError, UsageError
from hud.trace import SamplingParams
from hud_platform.models.weight_sources import place_companions

TALK = [{"role": "user", "content": "hi"}]
SCHEMAS = [{"type": "function", "function": tool.model_dump()} for tool in TOOLS]
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}<|end|>"
WITH_TOOLS = "<tools>{{ (tools or []) | map(attribute='function.name') | join }}</tools>" + PLAIN


def folder_of(path, settings=None, files=None):
    """Return a copy of the tiny model's folder with other settings and other template files."""
    shutil.copytree(tiny_folder(), path)
    (path / "chat_template.jinja").unlink()
    known = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**known, **(settings or {})}))
    for name, text in (files or {}).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


def chat_of(folder):
    return ChatFormat(folder, DecoderConfig.from_folder(folder))


def test_models_of_one_template_compile_it_once_and_name_their_own_folders(tmp_path):
    first, second = (
        chat_of(folder_of(tmp_path / name, files={"chat_template.jinja": PLAIN})) for name in "ab"
    )
    assert first.template(tools=False)._template is second.template(tools=False)._template
    with pytest.raises(UsageError, match=str(tmp_path / "b")):
        second.render(TALK, [], effort="high")


def assert_renders_as_transformers(folder):
    chat, theirs = chat_of(folder), AutoTokenizer.from_pretrained(folder)
    for tools, schemas in (([], None), (TOOLS, SCHEMAS) if chat.shows_tools else ([], [])):
        wanted = theirs.apply_chat_template(
            TALK, tools=schemas, add_generation_prompt=True, tokenize=False
        )
        assert chat.render_text(TALK, tools) == wanted


ALL_TOKENS = "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ sep_token }}|{{ pad_token }}|{{ cls_token }}|{{ mask_token }}|"


@pytest.mark.parametrize(
    "settings",
    [
        {"bos_token": None},
        {"bos_token": "<|user|>", "sep_token": None, "mask_token": "<|tool|>"},
        {"bos_token": {"__type": "AddedToken", "content": "<|user|>", "special": True}},
    ],
)
def test_a_special_token_that_the_tokenizer_lacks_renders_as_nothing(tmp_path, settings):
    defined = "{% if bos_token is defined %}begins{% endif %}"
    files = {"chat_template.jinja": ALL_TOKENS + defined + PLAIN}
    assert_renders_as_transformers(folder_of(tmp_path / "model", settings, files))


def test_special_tokens_under_names_of_the_model_are_read(tmp_path):
    further = {"extra_special_tokens": {"image_token": "<|tool|>", "sep_token": "<|user|>"}}
    text = "{{ image_token }}{{ sep_token }}" + PLAIN
    assert_renders_as_transformers(
        folder_of(tmp_path / "model", further, {"chat_template.jinja": text})
    )


def test_special_tokens_in_a_file_of_their_own_are_read(tmp_path):
    files = {
        "chat_template.jinja": ALL_TOKENS + PLAIN,
        "special_tokens_map.json": json.dumps({"bos_token": {"content": "<|user|>"}}),
    }
    folder = folder_of(tmp_path / "model", {"bos_token": "<|tool|>"}, files)
    assert_renders_as_transformers(folder)
    assert str(chat_of(folder).render_text(TALK, [])).startswith("<|user|>|")


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (
            {
                "chat_template": [
                    {"name": "default", "template": PLAIN},
                    {"name": "tool_use", "template": WITH_TOOLS},
                ]
            },
            {},
        ),
        ({"chat_template": [{"name": "default", "template": WITH_TOOLS}]}, {}),
        ({"chat_template": {"default": PLAIN, "tool_use": WITH_TOOLS}}, {}),
        (
            {},
            {
                "chat_template.jinja": PLAIN,
                "additional_chat_templates/tool_use.jinja": WITH_TOOLS,
                "additional_chat_templates/rag.jinja": "rag",
            },
        ),
        ({"chat_template": "from the settings"}, {"chat_template.jinja": PLAIN}),
    ],
)
def test_conversations_with_tools_have_the_template_for_tools(tmp_path, settings, files):
    assert_renders_as_transformers(folder_of(tmp_path / "model", settings, files))


def test_a_copied_folder_keeps_its_further_templates(tmp_path):
    files = {
        "chat_template.jinja": PLAIN,
        "additional_chat_templates/tool_use.jinja": WITH_TOOLS,
    }
    folder = folder_of(tmp_path / "model", {}, files)
    (tmp_path / "copy").mkdir()
    place_companions(folder, tmp_path / "copy")
    shutil.copyfile(folder / "config.json", tmp_path / "copy" / "config.json")
    assert chat_of(tmp_path / "copy").render_text(TALK, TOOLS).startswith("<tools>")


def test_a_folder_whose_templates_have_other_names_is_refused(tmp_path):
    named = [{"name": "rag", "template": PLAIN}]
    with pytest.raises(UsageError, match="no chat template, named default or tool_use"):
        chat_of(folder_of(tmp_path / "model", {"chat_template": named}))


@pytest.mark.parametrize("template", [[1], [{"name": "default"}], {"default": 1}, 7])
def test_a_template_that_is_no_text_is_refused(tmp_path, template):
    with pytest.raises(StoreError, match="neither a text nor a list of named texts"):
        chat_of(folder_of(tmp_path / "model", {"chat_template": template}))


SHOWN = "{% if tools %}{{ tools | map(attribute='function.name') | join }}{% endif %}"


@pytest.mark.parametrize("text", [PLAIN, SHOWN + PLAIN])
async def test_every_turn_shows_the_tools_also_with_a_template_that_drops_them(tmp_path, text):
    policy = Policy.load(folder_of(tmp_path / "model", {}, {"chat_template.jinja": text}))
    try:
        completion = await policy.chat_model("m").complete(
            TALK, TOOLS, SamplingParams(max_tokens=2)
        )
        prompt = policy.chat.decode(completion.sample.prompt_token_ids)
        assert all(tool.name in prompt for tool in TOOLS)
    finally:
        policy.close()
