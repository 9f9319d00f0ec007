"""A stranger's tokenizer.json is refused where one letter may become gigabytes, before native code runs."""

import contextlib
import json
import shutil
from base64 import b64encode

import pytest
from tests.engine.template_folders import PUBLISHED, template_folder
from tests.engine.tiny_policy import tiny_folder
from tokenizers import AddedToken, Tokenizer

from hud.engine.chat import prompt_tokens
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.tokenizers import prompt_process, tokenizer_file
from hud.engine.chat.tokenizers.published_patterns import PUBLISHED_PATTERNS
from hud.engine.chat.tokenizers.tokenizer_file import load_tokenizer
from hud.engine.chat.tokenizers.tokenizer_trial import trial_problem
from hud.engine.config import DecoderConfig
from hud.errors import StoreError, UsageError
from hud_platform.gateway.detokenizing import Vocabulary
from hud_platform.models.weight_sources import check_folder

DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
PAIR = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def folder_with(path, **changes):
    shutil.copytree(tiny_folder(), path)
    known = json.loads((path / "tokenizer.json").read_text())
    (path / "tokenizer.json").write_text(json.dumps({**known, **changes}))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 34}},
        {"normalizer": {"type": "Sequence", "normalizers": [PAIR] * 34}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Sequence", "normalizers": [DOUBLE] * 17}] * 2,
            }
        },
        {"normalizer": {**DOUBLE, "content": "a" * 100_000}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 34}},
        {"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 34}},
    ],
)
def test_steps_that_multiply_a_text_are_refused_when_a_model_is_added(tmp_path, changes):
    with pytest.raises(UsageError, match="times as long; 4,096 times is the most"):
        check_folder(folder_with(tmp_path / "model", **changes))


def test_a_token_of_a_megabyte_is_refused(tmp_path):
    token = {"id": 500, "content": "x" * 10**6, "special": False, "single_word": False}
    with pytest.raises(UsageError, match="a token of 1,000,000 characters"):
        load_tokenizer(folder_with(tmp_path / "model", added_tokens=[token]))


@pytest.fixture
def enlarged(tmp_path):
    """Return a function that adds a token beyond the vocabulary of the tiny model."""

    def add(special):
        folder = folder_with(tmp_path / "model")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        size = DecoderConfig.from_folder(folder).vocab_size
        while tokenizer.get_vocab_size() <= size:
            added = AddedToken(f"<extra {tokenizer.get_vocab_size()}>", special=special)
            tokenizer.add_tokens([added])
        tokenizer.save(str(folder / "tokenizer.json"))
        return folder, size

    return add


def test_a_token_that_the_model_has_no_embedding_for_is_refused_when_a_model_is_added(enlarged):
    folder, size = enlarged(special=False)
    with pytest.raises(UsageError, match=f"has the token id {size}; the model .* knows {size} tok"):
        check_folder(folder)


def test_a_special_token_beyond_the_vocabulary_is_taken(enlarged):
    """Gemma 3 for text has the token of pictures there."""
    folder, _ = enlarged(special=True)
    check_folder(folder)


def test_a_template_that_writes_a_token_beyond_the_vocabulary_is_refused(enlarged):
    folder, size = enlarged(special=True)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + f"<extra {size}>")
    with pytest.raises(UsageError, match=f"writes the token id {size}; .* knows {size} tokens"):
        check_folder(folder)


@pytest.mark.parametrize("end", [None, 400])
def test_a_tokenizer_without_an_end_token_is_refused_when_a_model_is_added(tmp_path, end):
    folder = folder_with(tmp_path / "model")
    for name, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        settings = json.loads((folder / name).read_text())
        settings.pop(key)
        if name == "config.json" and end is not None:  # Beyond the vocabulary: never sampled.
            settings[key] = end
        (folder / name).write_text(json.dumps(settings))
    (folder / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(UsageError, match="names no end-of-turn token"):
        check_folder(folder)


@pytest.mark.parametrize(
    "changes", [{"normalizer": 7}, {"model": None}, {"normalizer": {"type": "Replace"}}]
)
def test_a_file_of_another_form_is_damaged(tmp_path, changes):
    with pytest.raises(StoreError, match="damaged"):
        load_tokenizer(folder_with(tmp_path / "model", **changes))


def test_usual_steps_are_loaded(tmp_path):
    usual = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
            {"type": "NFKD"},
            {"type": "StripAccents"},
            {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ],
    }
    load_tokenizer(folder_with(tmp_path / "model", normalizer=usual))
    for name in PUBLISHED:
        load_tokenizer(template_folder(name))


def split_by(pattern):
    return {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
    }


def test_a_pattern_longer_than_a_command_line_is_tried_and_not_an_error(tmp_path):
    """It was an argument of the trial's process, which the kernel refused to start."""
    with pytest.raises(UsageError, match=r"Use a model with another tokenizer|is damaged"):
        check_folder(folder_with(tmp_path / "model", **split_by(f"{'x' * 300_000}|(a+)+$")))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "changes",
    [
        split_by("(a+)+$"),
        split_by("(?:foo|foofoo)+!"),
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(x|x)*$"}, "content": ""}},
        split_by("(?:a*a*)(?<!a)"),
    ],
    ids=["nested", "words", "normalizer", "cubic"],
)
def test_patterns_that_backtrack_for_hours_are_refused_when_a_model_is_added(tmp_path, changes):
    with pytest.raises(UsageError, match="texts? made of its own patterns"):
        check_folder(folder_with(tmp_path / "model", **changes))


@pytest.mark.parametrize("pattern", ["(?:a", "[b-a]"])
def test_a_pattern_that_is_none_is_refused_when_a_model_is_added(tmp_path, pattern):
    with pytest.raises(UsageError, match="is damaged"):
        check_folder(folder_with(tmp_path / "model", **split_by(pattern)))


def usual(folder):
    return load_tokenizer(folder).text is None


def test_tokenizers_without_a_pattern_of_their_own_match_in_this_process():
    assert usual(tiny_folder())


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(PUBLISHED_PATTERNS))
def test_published_patterns_match_in_this_process_in_linear_time(tmp_path, pattern):
    assert usual(folder_with(tmp_path / "published", **split_by(pattern)))
    tokenizer = json.loads((tiny_folder() / "tokenizer.json").read_text())
    text = json.dumps({**tokenizer, **split_by(pattern)})
    assert trial_problem(text, [pattern]) is None


STRIP = {"type": "Strip", "strip_left": False, "strip_right": False}
SPECIAL = json.loads((tiny_folder() / "tokenizer.json").read_text())["added_tokens"]


@pytest.mark.parametrize(
    "changes",
    [
        split_by("b+|[^b]+"),
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "b+"}, "content": ""}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 4}},
        {"added_tokens": [{**token, "lstrip": True} for token in SPECIAL]},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 2 + [STRIP] * 31}},
    ],
    ids=["pattern", "normalizer", "kind", "lstrip", "steps"],
)
def test_files_without_a_known_bound_encode_in_a_process_with_limits(tmp_path, changes):
    folder = folder_with(tmp_path / "model", **changes)
    assert not usual(folder)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert chat.encoding_threads is not None
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("abba bab", "<|user|>hi <|end|>", "é" * 100):
        assert chat.encode(text) == own.encode(text, add_special_tokens=False).ids
    prompt = chat.render([{"role": "user", "content": "a <|end|> b"}], [])
    assert prompt.count(own.token_to_id("<|end|>")) == 1


@pytest.mark.slow
def test_a_text_beyond_the_limits_is_refused_and_so_is_the_tokenizer_then(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_process, "WALL_FACTOR", 0.3)
    # Passes the trial: only before its word each position costs millions of steps.
    gated = "(?=a{1,2000}q7w)(?:a*a*)(?<!a)|[^\\n]"
    folder = folder_with(tmp_path / "model", **split_by(gated))
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert chat.encode("aab")
    for text in (("a" * 2000 + "q7w") * 500, "aab"):
        with pytest.raises(UsageError, match=r"more than 1\d s .* 1,001,500 characters"):
            chat.encode(text)


@pytest.mark.slow
def test_a_process_that_was_killed_is_started_again(tmp_path):
    folder = folder_with(tmp_path / "model", **split_by("b+|[^b]+"))
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    ids = chat.encode("abba")
    chat._prompts._process.kill()
    with contextlib.suppress(UsageError):
        chat.encode("abba")
    assert chat.encode("abba") == ids


def test_a_post_processor_repeats_no_text(tmp_path):
    repeated = [{"Sequence": {"id": "A", "type_id": 0}}] * 1000
    template = {"type": "TemplateProcessing", "single": repeated, "pair": [], "special_tokens": {}}
    folder = folder_with(tmp_path / "model", post_processor=template)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert len(chat.encode("a")) == 1


STRIP = {"type": "Strip", "content": "a", "start": 0, "stop": 1 << 40}
UNKNOWN = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "none"}


def test_a_decoder_that_panics_is_refused_with_a_sentence(tmp_path):
    """A panic is no `Exception`: it passed through every handler, and the request was kept without an end."""
    folder = folder_with(tmp_path / "model", decoder=STRIP)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    ids = chat.encode("aa")
    with pytest.raises(UsageError, match="cannot decode its own tokens"):
        chat.decode(ids)
    text = Vocabulary(chat.tokenizer).detokenizer()
    with pytest.raises(UsageError, match="cannot decode its own tokens"):
        text.take(ids)


def test_an_error_of_the_native_code_is_refused_with_a_sentence(tmp_path):
    tokenizer = load_tokenizer(folder_with(tmp_path / "model", model=UNKNOWN)).tokenizer
    with pytest.raises(UsageError, match="cannot encode this text"):
        prompt_tokens.PromptTokenizer(tokenizer, "").raw("xyz")


CHARSMAP = b64encode(bytes(4) + b"a" * 5000 + b"\0").decode()
DELIMITED = {"type": "CTC", "pad_token": "x", "word_delimiter_token": "", "cleanup": True}
LONG = {"id": 500, "content": "x" * 4000, "special": False, "single_word": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
        {"decoder": {"type": "Sequence", "decoders": [DELIMITED] * 30}},
        {"decoder": {**DOUBLE, "content": "a" * 5}, "added_tokens": [LONG]},
        {"decoder": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}},
    ],
    ids=["charsmap", "delimiters", "long token", "decoder's pattern"],
)
def test_decoders_and_tables_are_bounded_too(tmp_path, changes):
    with pytest.raises(UsageError, match="another tokenizer"):
        check_folder(folder_with(tmp_path / "model", **changes))


def test_a_file_that_is_too_large_is_damaged(tmp_path, monkeypatch):
    folder = folder_with(tmp_path / "model")
    monkeypatch.setattr(tokenizer_file, "LARGEST_FILE", 100)
    with pytest.raises(UsageError, match="100 are the most"):
        check_folder(folder)


def test_a_prompt_is_as_long_as_the_growth_of_its_tokenizer_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_tokens, "MOST_CHARACTERS", 1000)
    normalizer = {**DOUBLE, "content": "b" * 10}
    folder = folder_with(tmp_path / "model", normalizer=normalizer, pre_tokenizer=None)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert chat.encode("a" * 100)
    with pytest.raises(UsageError, match="101 characters; .* takes 100 at most"):
        chat.encode("a" * 101)


@pytest.mark.slow
def test_folders_of_earlier_tiny_models_are_split_as_before_in_linear_time(tmp_path):
    tokenizer = json.loads((tiny_folder() / "tokenizer.json").read_text())
    earlier = tokenizer["pre_tokenizer"]
    assert earlier["pretokenizers"][0]["type"] == "Split"
    earlier["pretokenizers"][0]["pattern"]["Regex"] = "[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
    folder = folder_with(tmp_path / "model", pre_tokenizer=earlier)
    now = load_tokenizer(folder)
    assert now.text is None
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("ab-cd ef", "-ab", "1ab-2", "a-b-c--d", "éab-cé x", "ab1-cd", " a_b-c"):
        assert now.tokenizer.encode(text).ids == before.encode(text).ids
    assert len(now.tokenizer.encode("a" * 300_000).ids) > 0
