"""The shape of a decoder, from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hud.errors import NotFoundError, StoreError, UsageError

ADAPTER_CONFIG = "adapter_config.json"
"""File that describes an adapter, in PEFT's format."""

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

_MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "head_dim": 1 << 16,
    "max_position_embeddings": 1 << 30,
}
"""Largest values of a downloaded folder: an object is made for each layer before any weight is read."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of a model folder that have the settings of its picture processor, either of them or both."""

_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,30}")

_FOREIGN_MOST = {"layer": 1000, "expert": 1 << 16}
"""Largest whole numbers of models outside the family, by a word of their name: an object is made for each."""
_FOREIGN_POSITIVE = frozenset(
    {
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
        "rope_theta",
        "factor",
        "sliding_window",
    }
)
"""Numbers above 0, or null, of models outside the family."""

_SCALING = {
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""Numbers that each kind of rotary scaling needs."""


_OF_FOREIGN_MODELS = ("value_head_dim", "reads_pictures", "recurrent")
"""Fields that say nothing of a model of the family."""


@dataclass(frozen=True)
class RecurrentShape:
    """Layers of a model that carry a state of fixed size from token to token, in place of keys and values."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    channels: int
    """Width of the convolution before the state."""
    memory: int
    """Earlier tokens that the convolution reads."""

    @classmethod
    def of(cls, shape: Any) -> RecurrentShape | None:
        """Return the gated delta rule layers of a text configuration of `transformers`; None without such."""
        kinds = getattr(shape, "layer_types", None) or ()
        key_heads = getattr(shape, "linear_num_key_heads", None)
        if "linear_attention" not in kinds or not key_heads:
            return None
        keys = key_heads * shape.linear_key_head_dim
        return cls(
            layers=list(kinds).count("linear_attention"),
            heads=shape.linear_num_value_heads,
            key_dim=shape.linear_key_head_dim,
            value_dim=shape.linear_value_head_dim,
            channels=2 * keys + shape.linear_num_value_heads * shape.linear_value_head_dim,
            memory=shape.linear_conv_kernel_dim - 1,
        )


@dataclass(frozen=True)
class DecoderConfig:
    """One member of the Llama, Qwen2, Qwen3 family; names are those of `config.json`."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Width of queries and keys."""
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    """Bias on q, k and v; Qwen2 always has it."""
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())
    dtype: str = "float32"
    """Type of the stored weights."""
    value_head_dim: int | None = None
    """Width of values; None: `head_dim`."""
    reads_pictures: bool = False
    """True for a class with a vision tower; the sizes are those of its text model."""
    recurrent: RecurrentShape | None = None
    """Layers without keys and values; None: all have them."""

    @property
    def key_layers(self) -> int:
        """Number of layers with keys and values."""
        return self.num_hidden_layers - (self.recurrent.layers if self.recurrent else 0)

    @property
    def ours(self) -> bool:
        """True for the family supported by `Decoder`; others use `transformers`."""
        return self.model_type in ARCHITECTURES.values() and not self.reads_pictures

    @property
    def value_width(self) -> int:
        """Width of values."""
        return self.value_head_dim or self.head_dim

    @property
    def query_key_norm(self) -> bool:
        """Qwen3 normalizes each head's query and key."""
        return self.model_type == "qwen3"

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2" or self.attention_bias

    @property
    def output_bias(self) -> bool:
        return self.model_type != "qwen2" and self.attention_bias

    @classmethod
    def from_folder(cls, folder: Path) -> DecoderConfig:
        """Read a folder's `config.json`.

        Raises `UsageError` if it is missing or its architecture cannot be computed, `StoreError` if it cannot be read.
        """
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFoundError(f"{folder} is no model folder: it has no config.json.") from None
        except (ValueError, OSError, RecursionError) as error:
            raise StoreError(f"{path} cannot be read: {error}. Restore it from a copy.") from error
        names = raw.get("architectures") if isinstance(raw, dict) else None
        name = names[0] if isinstance(names, list) and names else "?"
        if not isinstance(name, str) or name not in ARCHITECTURES:
            return _foreign(folder, str(name), raw)
        try:
            config = cls.from_dict(raw, str(path))
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{path} describes no model of this architecture ({detail})."
            ) from error
        problem = config.problem()
        if problem is not None:
            raise UsageError(f"{path}: {problem}")
        return config

    def problem(self) -> str | None:
        """Return the first value that no decoder can have, as a sentence; None: all are usable."""
        for name, most in _MOST.items():
            value = getattr(self, name)
            # Some models outside the family name no such size.
            least = 0 if name == "intermediate_size" and not self.ours else 1
            if type(value) is not int or not least <= value <= most:
                return f"{name} must be a whole number from {least} to {most:,}."
        scaling = {
            f"rope_scaling.{name}": (self.rope_scaling or {}).get(name)
            for name in _SCALING.get((self.rope_scaling or {}).get("rope_type", ""), ())
        }
        numbers: dict[str, Any] = {
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            **scaling,
        }
        for name, value in numbers.items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                return f"{name} must be a finite number above 0."
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            if type(getattr(self, name)) is not bool:
                return f"{name} must be true or false."
        if not all(map(is_token_id, self.eos_token_ids)):
            return "eos_token_id must be a token id, or a list of them."
        if self.bos_token_id is not None and not is_token_id(self.bos_token_id):
            return "bos_token_id must be a token id."
        if not _DTYPE.fullmatch(self.dtype):
            return "dtype must be the name of a type, such as bfloat16."
        if self.num_attention_heads % self.num_key_value_heads:
            return "num_attention_heads must be a multiple of num_key_value_heads."
        return "head_dim must be even." if self.ours and self.head_dim % 2 else None

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str = "config.json") -> DecoderConfig:
        """Return the shape that a `config.json` describes. Raises `UsageError` for an unsupported one."""
        name = raw["architectures"][0]
        if raw.get("quantization_config"):
            raise UsageError(f"{where}: {_quantized(raw['quantization_config'])}")
        if raw.get("use_sliding_window") and raw.get("sliding_window"):
            raise UsageError(f"{where}: sliding-window attention is not supported.")
        # transformers 5 keeps theta and scaling together in rope_parameters.
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        theta = rope.pop("rope_theta", raw.get("rope_theta", 10_000.0))
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "linear", "llama3"):
            raise UsageError(
                f"{where}: rotary scaling {kind!r} is not supported (supported: linear, llama3)."
            )
        heads = raw["num_attention_heads"]
        return cls(
            model_type=ARCHITECTURES[name],
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            max_position_embeddings=raw.get("max_position_embeddings", 2048),
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=float(theta),
            rope_scaling=None if kind == "default" else {**rope, "rope_type": kind},
            tie_word_embeddings=raw.get("tie_word_embeddings") or False,
            attention_bias=raw.get("attention_bias") or False,
            mlp_bias=raw.get("mlp_bias") or False,
            bos_token_id=raw.get("bos_token_id"),
            eos_token_ids=token_ids(raw.get("eos_token_id")),
            dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the `config.json` of this shape, as `transformers` reads it."""
        values = asdict(self)
        values["architectures"] = [
            name for name, kind in ARCHITECTURES.items() if kind == self.model_type
        ]
        for name in _OF_FOREIGN_MODELS:
            del values[name]
        eos = values.pop("eos_token_ids")
        values["eos_token_id"] = eos[0] if len(eos) == 1 else list(eos) or None
        scaling = values.pop("rope_scaling") or {"rope_type": "default"}
        values["rope_parameters"] = {**scaling, "rope_theta": self.rope_theta}
        # Releases of transformers before 5 read these two instead.
        if self.rope_scaling:
            values["rope_scaling"] = self.rope_scaling
        values["torch_dtype"] = self.dtype
        values["hidden_act"] = "silu"
        return values


def has_processor(folder: Path) -> bool:
    """Return whether a model folder has a picture processor; without one its model is used for text alone."""
    return any((folder / name).exists() for name in PROCESSOR_FILES)


def token_ids(value: Any) -> tuple[int, ...]:
    """Return the ids of a setting that holds one, a list of them, or none."""
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)


def is_token_id(value: Any) -> bool:
    """Return True for a value that may be a token's id."""
    return type(value) is int and 0 <= value < _MOST["vocab_size"]


def _odd_value(value: Any, name: str = "") -> str | None:
    """Return the first value, at any depth, that no model of `transformers` can have, as a sentence; None: there is none."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else ((name, inner) for inner in value)
        return next(filter(None, (_odd_value(inner, str(key)) for key, inner in items)), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} must be a finite number."
    most = next((most for word, most in _FOREIGN_MOST.items() if word in name), math.inf)
    if type(value) is int and value > most:
        return f"{name} must be at most {most:,}."
    positive = type(value) in (int, float) and value > 0
    if name in _FOREIGN_POSITIVE and value is not None and not positive:
        return f"{name} must be a finite number above 0."
    return None


def _foreign(folder: Path, name: str, raw: Any) -> DecoderConfig:
    """Return the dimensions of a model outside the family that sampling and training need."""
    path = folder / "config.json"
    odd = _odd_value(raw)
    if odd is not None:
        raise UsageError(f"{path}: {odd}")
    try:
        config = _foreign_shape(folder, name)
    except UsageError:
        raise
    except Exception as error:  # transformers raises many kinds of errors for odd values
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{path}: the architecture {name} is not supported: transformers cannot read it ({reason})."
        ) from error
    problem = config.problem()
    if problem is not None:
        raise UsageError(f"{path}: {problem}")
    return config


def _quantized(quantization: Any) -> str:
    """Return why quantized weights are refused."""
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return f"its weights are quantized ({method}); add the model whose weights are not."


def _foreign_shape(folder: Path, name: str) -> DecoderConfig:
    """Return the dimensions that `transformers` reads. Raises `UsageError` for a model that cannot be computed."""
    from transformers import AutoConfig  # Seconds to import, and most models are of the family.
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None and dequantization(quantization) is None:
        raise UsageError(f"{folder / 'config.json'}: {_quantized(quantization)}")
    shape = config.get_text_config()
    text_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(shape.model_type)
    # Some causal classes have a tower, too: Gemma 3's.
    tower = name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()
    # Of some classes with pictures, transformers loads the text model out of the whole.
    is_part = text_class is not None and text_class == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(
        config.model_type
    )
    pictures = tower and (not is_part or has_processor(folder))
    if not tower and name != text_class:
        raise UsageError(
            f"{folder / 'config.json'}: {name} is no causal language model that transformers knows."
        )
    if pictures and not isinstance(getattr(config, "image_token_id", None), int):
        raise UsageError(
            f"{folder / 'config.json'}: {name} reads pictures, but has no token that stands for one, which is not supported."
        )
    # Models without attention have no heads: their sizes bound what a state takes.
    heads = getattr(shape, "num_attention_heads", None) or 1
    if not isinstance(heads, int):  # One number for each layer.
        heads = 1
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    head_dim = _size(shape, "head_dim", shape.hidden_size // heads)
    value_head_dim = None
    if getattr(shape, "kv_lora_rank", None) and getattr(shape, "v_head_dim", None):
        # Latent attention: keys have a part with rotations and one without, values have neither.
        head_dim, kv_heads = shape.qk_nope_head_dim + shape.qk_rope_head_dim, heads
        value_head_dim = shape.v_head_dim
    return DecoderConfig(
        model_type=shape.model_type,
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=_size(shape, "intermediate_size", 0),
        num_hidden_layers=_size(shape, "num_hidden_layers", 1),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads if isinstance(kv_heads, int) else heads,
        head_dim=head_dim,
        value_head_dim=value_head_dim,
        max_position_embeddings=_size(shape, "max_position_embeddings", 2048),
        tie_word_embeddings=bool(getattr(shape, "tie_word_embeddings", False)),
        bos_token_id=getattr(shape, "bos_token_id", None),
        eos_token_ids=token_ids(getattr(shape, "eos_token_id", None)),
        dtype=str(shape.dtype or config.dtype or "float32").removeprefix("torch."),
        reads_pictures=pictures,
        recurrent=RecurrentShape.of(shape),
    )


def dequantization(quantization: Any) -> Any:
    """Return the settings by which `transformers` loads quantized weights as plain ones; None: it cannot."""
    from transformers.quantizers.auto import AutoQuantizationConfig

    try:
        settings = AutoQuantizationConfig.from_dict(quantization)
    except Exception:  # A method that it does not know, or that needs another package.
        return None
    if not hasattr(settings, "dequantize"):
        return None
    settings.dequantize = True
    return settings


def _size(shape: Any, name: str, default: int) -> int:
    """Return a size of a configuration; the default where it has none, or one for each layer."""
    size: Any = getattr(shape, name, None)
    # Impossible sizes are returned as they are: `DecoderConfig.problem` names them.
    return default if not size or isinstance(size, list | tuple | dict) else size
