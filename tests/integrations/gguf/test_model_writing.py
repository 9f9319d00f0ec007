"""Folders become GGUF files that are read again with the same bits, by our reader and by transformers, or are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.integrations.gguf.test_conversion import read_by_transformers, same_bits
from tests.integrations.gguf.written_files import (
    PIECES,
    SPECIAL,
    TEMPLATE,
    TEXTS,
    decoder,
    tokenizer,
)
from transformers import AutoTokenizer

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.pretrained import read_weights, save_decoder
from hud.engine.tiny_model import create_tiny
from hud.errors import UsageError
from hud_integrations.gguf.conversion import convert
from hud_integrations.gguf.model_file import GgufFile
from hud_integrations.gguf.model_writing import write_model_file

SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def saved(folder, model, pre="smollm", dtype=torch.float32, **settings):
    """Write a folder as published models are: weights, tokenizer, settings and chat template."""
    config = replace(model.config, eos_token_ids=(2,), bos_token_id=1)
    model = model.to(dtype)
    model.config = config
    save_decoder(model, folder)
    tokenizer(pre).save(str(folder / "tokenizer.json"))
    named = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    named |= {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def read(path, folder, dtype=None):
    folder.mkdir()
    convert(path, folder, dtype)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_is_read_again_bit_for_bit(tmp_path, family, dtype, tied):
    model = decoder(family, tied=tied)
    folder = saved(tmp_path / "model", model, dtype=getattr(torch, dtype))
    path = tmp_path / "model.gguf"
    write_model_file(folder, path)
    again = read(path, tmp_path / "again")
    before, after = read_weights(folder), read_weights(again)
    assert before.keys() == after.keys()
    assert all(same_bits(before[name], after[name]) for name in before)
    assert vars(DecoderConfig.from_folder(again)) == vars(DecoderConfig.from_folder(folder))
    theirs = read_by_transformers(path, again, getattr(torch, dtype))
    assert all(same_bits(before[name], theirs[name]) for name in before)
    talk = [{"role": "user", "content": TEXTS[0]}]
    chats = [ChatFormat(place, DecoderConfig.from_folder(place)) for place in (folder, again)]
    assert chats[0].render(talk, []) == chats[1].render(talk, [])
    assert chats[0].stop_ids == chats[1].stop_ids


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_the_way_of_splitting_texts_has_its_name(tmp_path, pre):
    folder = saved(tmp_path / "model", decoder(), pre)
    path = tmp_path / "model.gguf"
    write_model_file(folder, path)
    again = read(path, tmp_path / "again")
    ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(again)
    for text in (*TEXTS[:20], "A1b22 it's\n\n 7  \u00e9t\u00e9 \U0001f680"):
        assert ours(text).input_ids == theirs(text).input_ids


def test_a_type_of_weights_can_be_set_and_one_that_they_do_not_fit_is_refused(tmp_path):
    folder = saved(tmp_path / "model", decoder(), dtype=torch.bfloat16)
    path = tmp_path / "half.gguf"
    write_model_file(folder, path, dtype="float16")
    file = GgufFile(path)
    kinds = {(len(one.shape) > 1, one.tensor_type.name) for one in file.tensors.values()}
    assert kinds == {(True, "F16"), (False, "F32")}
    again = read_weights(read(path, tmp_path / "again", "float32"))
    expected = read_weights(folder)
    for name, weight in expected.items():
        half = weight.half() if weight.dim() > 1 else weight
        assert torch.equal(again[name], half.float())
    large = decoder()
    with torch.no_grad():
        large.model.layers[0].self_attn.q_proj.weight[0, 0] = 1e6
    with pytest.raises(UsageError, match="beyond float16; write the file in bfloat16"):
        write_model_file(saved(tmp_path / "large", large), path, dtype="float16")
    with pytest.raises(UsageError, match="float64 is none of them"):
        write_model_file(folder, path, dtype="float64")


@pytest.mark.parametrize("scaling", [SCALING, {"rope_type": "linear", "factor": 4.0}])
def test_rotary_scalings_and_biases_come_along(tmp_path, scaling):
    model = decoder("llama", rope_scaling=scaling, attention_bias=True, mlp_bias=True)
    folder = saved(tmp_path / "model", model)
    path = tmp_path / "model.gguf"
    write_model_file(folder, path)
    again = DecoderConfig.from_folder(read(path, tmp_path / "again"))
    assert again.rope_scaling == scaling
    assert (again.attention_bias, again.mlp_bias) == (True, True)


def test_several_ends_of_a_turn_and_more_rows_than_tokens_come_along(tmp_path):
    folder = saved(tmp_path / "model", decoder(vocabulary=416))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [0, 2]}))
    path = tmp_path / "model.gguf"
    write_model_file(folder, path)
    again = read(path, tmp_path / "again")
    chat = ChatFormat(again, DecoderConfig.from_folder(again))
    assert chat.stop_ids == {0, 2}
    assert chat.end_id == 2
    assert read_weights(again)["model.embed_tokens.weight"].shape[0] == 416


def pieces(tmp_path):
    """A folder with a vocabulary of sentence pieces."""
    from tokenizers import Tokenizer

    folder = saved(tmp_path / "model", decoder(vocabulary=280))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    merges = ["l o", "o k", "\u2581 lo", "\u2581lo ok", "a t", "\u2581 at"]
    described = {
        "version": "1.0",
        "added_tokens": [
            {"id": place, "content": text, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for place, text in enumerate(tokens[:3])
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        },
        "decoder": {"type": "ByteFallback"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: place for place, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    Tokenizer.from_str(json.dumps(described)).save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def test_a_vocabulary_of_sentence_pieces_is_written(tmp_path):
    folder, path = pieces(tmp_path), tmp_path / "model.gguf"
    write_model_file(folder, path)
    again = read(path, tmp_path / "again")
    chats = [ChatFormat(place, DecoderConfig.from_folder(place)) for place in (folder, again)]
    for text in ("look atz", "lo at look", "ta \u00e9"):
        assert chats[0].encode(text) == chats[1].encode(text)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert theirs("look at").input_ids[-2:] == chats[0].encode("look at")


def test_what_the_format_cannot_hold_is_refused_with_the_reason(tmp_path):
    create_tiny(tmp_path / "tiny", TEXTS, vocab_size=400, hidden=32, layers=1, max_context=64)
    with pytest.raises(
        UsageError, match=r"splits texts in a way that GGUF has no name for.*--to hf"
    ):
        write_model_file(tmp_path / "tiny", tmp_path / "tiny.gguf")
    folder = saved(tmp_path / "model", decoder())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [0, 2, 5, 6]}))
    with pytest.raises(UsageError, match="ends turns by 4 tokens"):
        write_model_file(folder, tmp_path / "model.gguf")
    other = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (folder / "config.json").write_text(json.dumps(config | other))
    with pytest.raises(UsageError, match="GGUF is written for llama, qwen2, qwen3"):
        write_model_file(folder, tmp_path / "model.gguf")


def test_packed_rows_are_llama_cpp_s(tmp_path):
    model = decoder("llama")
    folder, path = saved(tmp_path / "model", model), tmp_path / "model.gguf"
    write_model_file(folder, path)
    from tests.integrations.gguf.written_files import packed_order

    name = "model.layers.0.self_attn.q_proj.weight"
    expected = packed_order(name, model.state_dict()[name], model.config)
    stored = GgufFile(path).tensors["blk.0.attn_q.weight"]
    assert np.array_equal(np.asarray(stored.data), expected.numpy())
