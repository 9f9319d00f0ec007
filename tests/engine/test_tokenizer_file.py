"""A stranger's tokenizer.json is refused where one letter may become gigabytes, before native code runs."""

import json
import shutil

import pytest
from tests.engine.template_folders import PUBLISHED, template_folder
from tests.engine.tiny_policy import tiny_folder

from hud.engine.chat.tokenizer_file import load_tokenizer
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
