"""A stranger's tokenizer.json is refused where one letter may become gigabytes, before native code runs."""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.template_folders import PUBLISHED, template_folder
from tests.engine.tiny_policy import tiny_folder
from tokenizers import Tokenizer

from hud.engine.chat import prompt_tokens
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.tokenizer_file import load_tokenizer
from hud.engine.config import DecoderConfig
from hud.errors import StoreError, UsageError
from hud.platform.models.weight_sources import check_folder

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


def test_patterns_of_published_tokenizers_pass_their_trial(tmp_path):
    # GPT-4o's.
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    ends = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    pattern = (
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ends}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ends}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert load_tokenizer(folder_with(tmp_path / "model", **split_by(pattern))).tried


def test_a_tiny_model_needs_no_trial():
    folder = tiny_folder()
    assert not load_tokenizer(folder).tried


def test_loads_at_the_same_time_share_one_trial(tmp_path, monkeypatch):
    folder, trials, run = (
        folder_with(tmp_path / "model", **split_by("b+|[^b]+")),
        [],
        subprocess.run,
    )

    def counted(*arguments, **options):
        trials.append(arguments)
        return run(*arguments, **options)

    monkeypatch.setattr("hud.engine.chat.tokenizer_trial.subprocess.run", counted)
    with ThreadPoolExecutor(4) as pool:
        assert all(loaded.tried for loaded in pool.map(load_tokenizer, [folder] * 4))
    assert len(trials) == 1


def test_a_prompt_is_as_long_as_the_growth_of_its_tokenizer_allows(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_tokens, "MOST_CHARACTERS", 1000)
    normalizer = {**DOUBLE, "content": "b" * 10}
    folder = folder_with(tmp_path / "model", normalizer=normalizer, pre_tokenizer=None)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert chat.encode("a" * 100)
    with pytest.raises(UsageError, match="101 characters; .* takes 100 at most"):
        chat.encode("a" * 101)


def test_folders_of_earlier_tiny_models_are_split_as_before_in_linear_time(tmp_path):
    tokenizer = json.loads((tiny_folder() / "tokenizer.json").read_text())
    earlier = tokenizer["pre_tokenizer"]
    assert earlier["pretokenizers"][0]["type"] == "Split"
    earlier["pretokenizers"][0]["pattern"]["Regex"] = "[A-Za-z]+(?=-)|(?<=-)[A-Za-z]+|[-0-9]"
    folder = folder_with(tmp_path / "model", pre_tokenizer=earlier)
    now = load_tokenizer(folder)
    assert not now.tried
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in ("ab-cd ef", "-ab", "1ab-2", "a-b-c--d", "éab-cé x", "ab1-cd", " a_b-c"):
        assert now.tokenizer.encode(text).ids == before.encode(text).ids
    assert len(now.tokenizer.encode("a" * 300_000).ids) > 0
