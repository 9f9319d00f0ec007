"""GGUF files become folders with the same weights, the same tokens and the same answers, or are refused."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.gguf import written_files
from tests.integrations.gguf.written_files import (
    PIECES,
    SPECIAL,
    TEMPLATE,
    decoder,
    rope_factors,
    write,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.tokenizers.tokenizer_file import load_tokenizer
from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import inverse_frequencies
from hud.engine.pretrained import load_decoder, read_weights
from hud.errors import UsageError
from hud_integrations.gguf import tensors
from hud_integrations.gguf.configuration import llama3_factors
from hud_integrations.gguf.conversion import convert
from hud_integrations.gguf.conversion_process import convert_gguf

IDS = torch.tensor([[1, 7, 300, 25, 9, 9, 123, 2]])


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    return made


def read_by_transformers(path, folder, dtype):
    """Return the weights as transformers reads the file."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return load_gguf_checkpoint(
        str(path), return_tensors=True, model_to_load=model, torch_dtype=dtype
    )["tensors"]


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_that_transformers_reads_bit_for_bit(
    tmp_path, folder, family, kind, dtype
):
    tied = kind != "Q8_0"
    path = write(tmp_path / "m.gguf", decoder(family, tied=tied), kind)
    convert(path, folder, dtype)
    weights = read_weights(folder)
    expected = read_by_transformers(path, folder, getattr(torch, dtype))
    assert weights.keys() == expected.keys()
    assert ("lm_head.weight" in weights) is not tied
    assert all(same_bits(weights[name], expected[name]) for name in weights)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_model_answers_as_before(tmp_path, folder, family, bias):
    shape = {"attention_bias": bias, "mlp_bias": bias} if family == "llama" else {}
    model = decoder(family, tied=False, **shape)
    convert(write(tmp_path / "m.gguf", model), folder, None)
    read = load_decoder(folder)
    assert read.dtype == torch.float32  # As the file's matrices.
    logits = AutoModelForCausalLM.from_pretrained(folder)(IDS).logits
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, read.state_dict()[name]), name
    assert vars(read.config) == vars(model.config) | {
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    assert torch.isfinite(logits).all()


def test_quantized_weights_become_bfloat16_unless_float32_is_asked_for(tmp_path, folder):
    path = write(tmp_path / "m.gguf", decoder(), "Q8_0")
    convert(path, folder, None)
    assert DecoderConfig.from_folder(folder).dtype == "bfloat16"
    convert(path, folder, "float32")
    assert load_decoder(folder).dtype == torch.float32


def test_large_weights_are_written_in_parts_and_unpacked_in_pieces(tmp_path, folder, monkeypatch):
    path = write(tmp_path / "m.gguf", decoder(), "Q4_0")
    (tmp_path / "one").mkdir()
    convert(path, tmp_path / "one", None)
    monkeypatch.setattr(tensors, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(tensors, "PIECE_ELEMENTS", 1000)
    convert(path, folder, None)
    assert len(list(folder.glob("*.safetensors"))) > 3
    together, parts = read_weights(tmp_path / "one"), read_weights(folder)
    assert all(same_bits(together[name], parts[name]) for name in together | parts)


@pytest.fixture(scope="module", params=["smollm", "gpt-2", "qwen2", "llama-bpe"])
def tokenizers(request, tmp_path_factory):
    """A tokenizer, and the one that was read from a file of it."""
    place = tmp_path_factory.mktemp("tokenizer")
    convert(write(place / "m.gguf", decoder(), pre=request.param), place, None)
    return written_files.tokenizer(request.param), place


@pytest.mark.slow
@given(
    st.text(max_size=60) | st.sampled_from(["it's 1234  5", " \n\n 7", "e\u0301t\u00e9", "A1b22"])
)
def test_texts_become_the_same_tokens(tokenizers, text):
    tokenizer, place = tokenizers
    read = load_tokenizer(place)
    assert read.text is None  # Its time for a text is bounded: it encodes in this process.
    if json.loads((place / "tokenizer.json").read_text())["normalizer"]:
        text = tokenizer_nfc(text)
    assert (
        read.tokenizer.encode(text, add_special_tokens=False).ids
        == tokenizer.encode(text, add_special_tokens=False).ids
    )
    ids = tokenizer.encode(text).ids
    assert read.tokenizer.decode(ids) == tokenizer.decode(ids)


def tokenizer_nfc(text):
    import unicodedata

    return unicodedata.normalize("NFC", text)


def test_special_tokens_and_templates_come_with_the_file(tmp_path, folder):
    further = {
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}" + TEMPLATE,
        "tokenizer.ggml.eot_token_id": 0,
    }
    convert(write(tmp_path / "m.gguf", decoder(), **further), folder, None)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    assert chat.special == {
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
    }
    assert chat.stop_ids == {0, 2}
    assert chat.end_id == 2
    assert chat.shows_tools
    talk = [{"role": "user", "content": "look <|im_end|>"}]
    ids = chat.render(talk, [])
    assert ids.count(1) == 2  # Of the template.
    assert ids.count(2) == 1  # The user's is plain text.
    by_transformers = AutoTokenizer.from_pretrained(folder)
    assert by_transformers.eos_token_id == 2
    text = "look at <|im_start|> 12"
    assert by_transformers(text).input_ids == chat.encode(text)


def test_a_vocabulary_of_sentence_pieces_is_read(tmp_path, folder):
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
    scores = [0.0] * 259 + [-float(index) for index in range(len(PIECES))]
    further = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": None,
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.tokens": [*pieces, *PIECES],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    path = write(tmp_path / "m.gguf", decoder(vocabulary=len(kinds)), **further)
    convert(path, folder, None)
    chat = ChatFormat(folder, DecoderConfig.from_folder(folder))
    tokens = [chat.tokenizer.id_to_token(token) for token in chat.encode("look atz")]
    assert tokens == ["\u2581look", "\u2581at", "<0x7A>"]
    assert chat.tokenizer.decode(chat.encode("look atz")) == "look atz"
    by_transformers = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert by_transformers("look at lot").input_ids == [1, *chat.encode("look at lot")]


def test_llama_3s_rotary_scaling_is_read_from_its_factors(tmp_path, folder):
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = decoder(head_dim=64, rope_theta=500_000.0, rope_scaling=scaling)
    path = write(tmp_path / "plain.gguf", model, pre="llama-bpe")
    factors = llama3_factors(scaling, 500_000.0, 64)
    convert(rope_factors(path, tmp_path / "m.gguf", factors), folder, None)
    config = DecoderConfig.from_folder(folder)
    assert config.rope_scaling == scaling
    assert torch.equal(inverse_frequencies(config), inverse_frequencies(model.config))
    odd = rope_factors(path, tmp_path / "odd.gguf", factors * np.linspace(1, 2, len(factors)))
    with pytest.raises(UsageError, match="not Llama 3's"):
        convert(odd, folder, None)


def test_linear_rotary_scaling_is_read(tmp_path, folder):
    further = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    convert(write(tmp_path / "m.gguf", decoder(), **further), folder, None)
    scaling = DecoderConfig.from_folder(folder).rope_scaling
    assert scaling == {"rope_type": "linear", "factor": 2.5}


ODD = {
    "general.type": ("adapter", "is no model but 'adapter'"),
    "split.count": (3, "merge them first"),
    "llama.block_count": (3, "lacks weights of its architecture: blk.2"),
    "llama.embedding_length": (None, "has no number for llama.embedding_length"),
    "llama.attention.head_count": (0, "num_attention_heads must be"),
    "llama.attention.key_length": (8, "rotates a part of each head"),
    "llama.attention.sliding_window": (128, "sliding-window"),
    "llama.rope.scaling.type": ("yarn", "rotary scaling 'yarn'"),
    "llama.expert_count": (8, "mixture of 8 experts"),
    "llama.feed_forward_length": (95, "shape"),
    "tokenizer.ggml.model": ("bert", "tokenizer of the kind 'bert'"),
    "tokenizer.ggml.tokens": (None, "holds no tokenizer"),
    "tokenizer.ggml.pre": ("bloom", "splits texts in the way 'bloom'"),
    "tokenizer.ggml.eos_token_id": (100_000, "names token 100000 as its eos token"),
    "tokenizer.ggml.merges": (["a b c"], "merge that makes no token"),
    "tokenizer.ggml.token_type": ([1], "another number of tokens"),
}
OF_ANOTHER_TYPE = [
    ("tokenizer.ggml.merges", [1, 2]),
    ("split.count", "x"),
    ("split.count", [1, 2]),
]


@pytest.mark.parametrize(("key", "value"), OF_ANOTHER_TYPE)
def test_metadata_of_another_type_is_refused_in_one_sentence(tmp_path, folder, key, value):
    path = write(tmp_path / "m.gguf", decoder(), **{key: value})
    with pytest.raises(UsageError, match="is damaged|describes no model"):
        convert(path, folder, None)


@pytest.mark.parametrize("key", ODD)
def test_an_odd_file_is_refused_in_one_sentence(tmp_path, folder, key):
    value, reason = ODD[key]
    path = write(tmp_path / "m.gguf", decoder(), **{key: value})
    with pytest.raises(UsageError, match=reason) as refusal:
        convert(path, folder, None)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_architecture_outside_of_the_families_is_refused_by_name(tmp_path, folder):
    written = write(tmp_path / "m.gguf", decoder("qwen2")).read_bytes()
    path = tmp_path / "other.gguf"
    path.write_bytes(written.replace(b"qwen2", b"rwkv7"))
    with pytest.raises(
        UsageError, match="architecture 'rwkv7'; GGUF is read for llama, qwen2, qwen3"
    ):
        convert(path, folder, None)


@pytest.mark.slow
@given(st.data())
def test_damaged_bytes_are_refused_in_one_sentence(tmp_path_factory, data):
    place = tmp_path_factory.getbasetemp() / "whole.gguf"
    whole = place.read_bytes() if place.exists() else write(place, decoder(), "Q8_0").read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged = place.with_name("damaged.gguf")
    damaged.write_bytes(whole[:cut])
    with pytest.raises(UsageError):
        convert(damaged, place.parent, None)


def test_a_quantization_that_nobody_knows_is_named(tmp_path, folder):
    path = write(tmp_path / "m.gguf", decoder(), "Q8_0")
    name = b"token_embd.weight" + struct.pack("<IQQ", 2, 64, 400)
    written = path.read_bytes()
    assert written.count(name) == 1
    place = written.index(name) + len(name)
    path.write_bytes(written[:place] + struct.pack("<I", 999) + written[place + 4 :])
    with pytest.raises(UsageError, match="quantization that the gguf package does not know"):
        convert(path, folder, None)
    # Known by name, and without a way to unpack it.
    path.write_bytes(written[:place] + struct.pack("<I", 24) + written[place + 4 :])
    with pytest.raises(UsageError, match="quantization I8"):
        convert(path, folder, None)


@pytest.mark.slow
def test_the_process_with_limits_converts_and_hands_back_its_sentence(tmp_path, folder):
    path = write(tmp_path / "m.gguf", decoder(), "Q8_0")
    convert_gguf(path, folder, dtype="float32")
    assert load_decoder(folder).dtype == torch.float32
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"m\.gguf is damaged or incomplete"):
        convert_gguf(path, folder)


@pytest.mark.slow
def test_a_list_that_claims_any_length_is_refused_at_the_end_of_the_file(tmp_path, folder):
    key = b"general.architecture"
    header = struct.pack("<IIQQ", 0x46554747, 3, 0, 1)
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 0, 1 << 60)
    (tmp_path / "m.gguf").write_bytes(header + entry)
    with pytest.raises(UsageError, match="is damaged or incomplete"):
        convert_gguf(tmp_path / "m.gguf", folder)
