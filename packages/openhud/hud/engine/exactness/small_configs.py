"""Small configurations of a model's class: few layers of every kind that it has, and narrow.

No list of classes: sizes are recognized by the words of their names, and by their ratio to the hidden size. Several
shrinkings are offered, since some classes tie sizes to each other in ways of their own; the first that makes a model is used.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

VOCABULARY = 96
CONTEXT = 192
"""Positions of a small model; more than any batch of the check has tokens."""
WINDOW = 8
"""Windows, chunks of attention and original contexts of scaled rotary embeddings: the batches go beyond all of them."""
MOST_LAYERS = 8
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embed_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")

_SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?|n_vocab", VOCABULARY),
    (
        r"(n|max)_positions|n_ctx|max_(position_embeddings|seq(uence)?_len(gth)?|seqlen)|(seq|model_max|context)_length|max_(target|source)_positions",
        CONTEXT,
    ),
    (
        r"original_max_position_embeddings|max_window_size|.*sliding_window(_size)?|window_size|.*chunk_size_attention",
        WINDOW,
    ),
    (
        r"attention_chunk_size|attention_window(_size)?|local_(attention|attn).*(window|length|size)|.*block_size",
        WINDOW,
    ),
    (r"(mamba_|ssm_)?chunk_size(_.*)?|num_ln_chunks", WINDOW),
    (
        r"(num|n)_(key_value|kv)_heads|num_kv_heads|multi_query_group_num|.*num_key_value_heads|num_attention_groups",
        2,
    ),
    (r"(num|n)_(attention_)?heads?|n_heads?|num_heads|(encoder|decoder)_attention_heads", 4),
    (
        r"(num|n)_.*experts(_total)?|moe_num_experts|num_local_experts|n_routed_experts|num_experts",
        8,
    ),
    (
        r"num_experts_per_tok(en)?|moe_(k|topk|top_k)|top_?k|num_selected_experts|moe_topk|experts_per_token",
        2,
    ),
    (r"n_groups?|num_expert_groups?|moe_n_group", 2),
    (r"topk_group|num_limited_groups?", 1),
    (r"rotary_dim", 8),
    (r"q_lora_rank|q_rank", 24),
    (r"(kv|o|v)_lora_rank|.*_lora_(rank|dim)|.*low_rank.*", 16),
    (r"qk_rope_head_dim|.*rope_head_dim", 8),
    (r"qk_nope_head_dim", 16),
    (r"qk_head_dim", 24),
    (r"v_head_dim", 12),
    (r"index_topk|.*sparse_topk", 1024),
    (r"index_head_dim", 16),
    (r"index_n_heads", 2),
    (r"linear_num_key_heads", 2),
    (r"linear_num_value_heads", 4),
    (r"linear_.*head_dim", 8),
    (r"(mamba_)?(ssm_)?(d_)?state(_size|_dim)?|mamba_d_state|ssm_state_size|state_size", 8),
    (r"(mamba_)?(dt_rank|time_step_rank)", 4),
    (r".*head_dim|attention_head_size|head_size|kv_channels|d_kv", 16),
    (
        r".*(intermediate|ffn|inner|feed_?forward|mlp).*(size|dim|hidden).*|n_inner|d_ff|ffn_dim|.*ffn_dim|ffn_hidden.*",
        48,
    ),
)
"""Names of sizes, as regular expressions, and what they become; the first that fits counts."""
_GEOMETRY = re.compile(
    r"image_size|.*patch_size|.*merge_size|num_position_embeddings|mm_tokens_per_image|image_seq_length|"
    r"(in|num)_channels|scale_factor|pooling_kernel_size|position_embedding_size|.*deepstack.*"
)
"""Sizes of pictures, which a processor's settings depend on: they stay."""

_FIRST_LAYERS = (
    "first_k_dense_replace",
    "num_dense_layers",
    "n_dense_layers",
    "moe_layer_start_index",
)
_LAST_LAYERS = ("num_kv_shared_layers",)
_PERIODIC = re.compile(r"period|interval|every|_step$|_freq$|pattern|offset")

Numbers = dict[str, Any]


def small_configs(config: Any) -> Iterator[Any]:
    """Yield small configurations of the same class as `config`, a `transformers` configuration; some may make no model."""
    values = config.to_dict()
    for shrink in (_by_name, _by_name_twice, _by_ratio, _wide):
        try:
            yield _built(config, shrink(values))
        except Exception:
            continue


def _built(config: Any, values: Numbers) -> Any:
    values = {
        key: value for key, value in values.items() if key not in ("quantization_config", "dtype")
    }
    return type(config).from_dict(values)


def _by_name(values: Numbers) -> Numbers:
    """Return small values by the names of sizes, then by the ratio to the hidden size."""
    hidden = _hidden(values)
    return _walked(values, lambda name, value: _named(name, value, hidden))


def _by_name_twice(values: Numbers) -> Numbers:
    """Return small values with two layers of each kind: some classes share weights between those of a kind."""
    hidden = _hidden(values)
    return _walked(values, lambda name, value: _named(name, value, hidden), repeats=2)


def _by_ratio(values: Numbers) -> Numbers:
    """Return values of which all sizes of layers are divided by the same number; heads stay as many."""
    hidden = _hidden(values)
    divisor = max(1, hidden // 64)

    def smaller(name: str, value: int) -> int:
        if re.fullmatch(_SIZES[0][0], name) or re.fullmatch(_SIZES[1][0], name):
            return _named(name, value, hidden)
        if value >= 2 * divisor and value % divisor == 0:
            return value // divisor
        return value

    return _walked(values, smaller)


def _wide(values: Numbers) -> Numbers:
    """Return values with fewer layers and tokens alone."""

    def smaller(name: str, value: int) -> int:
        few = any(re.fullmatch(_SIZES[row][0], name) for row in (0, 1, 2, 3))
        return _named(name, value, 0) if few else value

    return _walked(values, smaller)


def _hidden(values: Numbers) -> int:
    """Return the hidden size, of a class with pictures that of its text model."""
    return _first(values, _HIDDEN) or _first(values.get("text_config") or {}, _HIDDEN) or 64


def _named(name: str, value: int, hidden: int) -> int:
    """Return the small value of a size: by its name, or by its ratio to the hidden size."""
    if value <= 0 or _GEOMETRY.fullmatch(name):
        return value
    # A tower's output is as wide as the text model.
    if name in _HIDDEN or (name == "out_hidden_size" and value == hidden):
        return 64
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return _kept_kind(value, size)
    if hidden and value >= 64:
        return max(1, round(64 * value / hidden)) if value % hidden == 0 else min(value, 64)
    return value


def _kept_kind(value: int, size: int) -> int:
    """Return `size`, or less where the value is less already, such as 1 for a single head or group; contexts are all as long."""
    return size if size == CONTEXT else min(value, size)


def _walked(values: Numbers, smaller: Callable[[str, int], int], repeats: int = 1) -> Numbers:
    """Return values of which each whole number has become `smaller`, with some of the layers."""
    layers = _first(values, _LAYERS)
    places = _kept_layers(values, layers, repeats) if layers else []
    shrunk: Numbers = {}
    for name, value in values.items():
        if name in ("id2label", "label2id"):
            continue
        if layers and name in _LAYERS:
            shrunk[name] = len(places)
        elif layers and _is_row(name, value, layers):
            picked = [value[place] for place in places]
            shrunk[name] = "".join(picked) if isinstance(value, str) else picked
        elif layers and _are_places(name, value, layers):
            shrunk[name] = [places.index(place) for place in value if place in places]
        elif layers and _are_places(name, list(_integers(value)), layers):
            shrunk[name] = {
                places.index(int(place)): _walked(inner, smaller, repeats)
                for place, inner in value.items()
                if int(place) in places
            }
        elif layers and name in _FIRST_LAYERS and type(value) is int:
            shrunk[name] = sum(place < value for place in places)
        elif layers and name in _LAST_LAYERS and type(value) is int:
            shrunk[name] = sum(place >= layers - value for place in places)
        elif name.endswith(("token_id", "token_ids", "token_index")):
            shrunk[name] = _token(value)
        elif isinstance(value, dict):
            shrunk[name] = _walked(value, smaller, repeats)
        elif type(value) is int:
            shrunk[name] = smaller(name, value)
        elif isinstance(value, list) and value and all(type(item) is int for item in value):
            shrunk[name] = [smaller(name, item) for item in value]
        else:
            shrunk[name] = value
    return _consistent(values, shrunk)


def _kept_layers(values: Numbers, layers: int, repeats: int) -> list[int]:
    """Return the places of layers with `repeats` of every kind, where there are so many: the first few, or the first of each kind."""
    kinds = [_kind(values, layers, place) for place in range(layers)]
    wanted = {kind: min(repeats, number) for kind, number in Counter(kinds).items()}
    count = 2
    for name, value in values.items():
        if _PERIODIC.search(name) and type(value) is int and 1 < value <= MOST_LAYERS:
            count = max(count, value + ("offset" in name))
    count = min(count, layers)
    while count < min(layers, MOST_LAYERS * repeats) and not _has(kinds[:count], wanted):
        count += 1
    if _has(kinds[:count], wanted):
        return list(range(count))
    firsts = [place for place, kind in enumerate(kinds) if kinds[:place].count(kind) < wanted[kind]]
    return sorted({0, 1, *firsts})[: MOST_LAYERS * repeats] if layers > 1 else [0]


def _has(kinds: list[str], wanted: dict[str, int]) -> bool:
    """Return whether there are as many of each kind as `wanted`."""
    return all(kinds.count(kind) >= number for kind, number in wanted.items())


def _kind(values: Numbers, layers: int, place: int) -> str:
    """Return what sets a layer apart, as far as the configuration lists it."""
    marks: list[Any] = []
    for name, value in values.items():
        if _is_row(name, value, layers):
            marks.append(value[place])
        elif _are_places(name, value, layers):
            marks.append(place in value)
        elif _are_places(name, list(_integers(value)), layers):
            marks.append({int(key): inner for key, inner in value.items()}.get(place))
        elif name in _FIRST_LAYERS and type(value) is int:
            marks.append(place < value)
        elif name in _LAST_LAYERS and type(value) is int:
            marks.append(place >= layers - value)
    return str(marks)


def _is_row(name: str, value: Any, layers: int) -> bool:
    """Return whether a value has one item for each layer."""
    if isinstance(value, str):
        return "pattern" in name and len(value) == layers
    return isinstance(value, list) and len(value) == layers > 1


def _are_places(name: str, value: Any, layers: int) -> bool:
    """Return whether a value names layers by their places."""
    if not isinstance(value, list) or not value or not re.search(r"layer|_idxs|_ids$", name):
        return False
    return all(type(item) is int and 0 <= item < layers for item in value)


def _integers(value: Any) -> Iterator[int]:
    """Yield the keys of a dictionary, if all are whole numbers."""
    if isinstance(value, dict) and all(str(key).isdigit() for key in value):
        yield from map(int, value)


def _consistent(values: Numbers, shrunk: Numbers) -> Numbers:
    """Restore what sizes have to do with each other."""
    heads, kv = _first(values, _HEADS), values.get("num_key_value_heads")
    hidden = _first(values, _HIDDEN)
    small_heads, small_hidden = _first(shrunk, _HEADS), _first(shrunk, _HIDDEN)
    if heads and kv and small_heads and type(kv) is int:
        shrunk["num_key_value_heads"] = (
            small_heads if kv == heads else 1 if kv == 1 else max(1, small_heads // 2)
        )
    dim, rotary, rest = (
        values.get(name) for name in ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim")
    )
    if rotary and rest:
        for name, value in values.items():
            if name.endswith("head_dim") and value == rotary + rest:
                shrunk[name] = shrunk["qk_rope_head_dim"] + shrunk["qk_nope_head_dim"]
    if dim and rotary and dim == rotary:
        shrunk["head_dim"] = shrunk["qk_rope_head_dim"]
    elif (
        type(dim) is int
        and small_heads
        and small_hidden
        and (heads or 0) * dim == hidden
        and not rotary
    ):
        shrunk["head_dim"] = small_hidden // small_heads
    _fit_state_space(values, shrunk, small_hidden or 64)
    return shrunk


def _fit_state_space(values: Numbers, shrunk: Numbers, hidden: int) -> None:
    """Restore that the heads of a state space are as wide together as its inner states."""
    expand = values.get("mamba_expand") or values.get("expand") or 2
    inner = int(expand * hidden)
    if "mamba_d_ssm" in values:
        inner = shrunk["mamba_d_ssm"] = 128
    pairs = (
        ("mamba_n_heads", "mamba_d_head"),
        ("mamba_num_heads", "mamba_head_dim"),
        ("n_mamba_heads", "mamba_headdim"),
        *([("num_heads", "head_dim")] if "state_size" in values else []),
    )
    for count, width in pairs:
        if type(values.get(count)) is int and width in values and values[count] > 1:
            shrunk[count] = 8
            if values[width] != "auto":
                shrunk[width] = inner // 8


def _token(value: Any) -> Any:
    """Return a token id, or a list of them, in the small vocabulary."""
    if isinstance(value, list):
        return [_token(item) for item in value]
    return value % VOCABULARY if type(value) is int and value >= 0 else value


def _first(values: Numbers, names: tuple[str, ...]) -> int | None:
    """Return the first whole number above 0 under one of the names."""
    present = (values.get(name) for name in names)
    return next((value for value in present if type(value) is int and value > 0), None)


def parameters_of(model: Any) -> int:
    """Return how many numbers a model's parameters hold."""
    return sum(math.prod(parameter.shape) for parameter in model.parameters())
