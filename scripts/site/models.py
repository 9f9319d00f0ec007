"""Write the tables of docs/models.md: how each class of the installed `transformers` is computed, found by the check of exactness.

    python scripts/site/models.py                  all classes, about half an hour of one core
    python scripts/site/models.py gemma2 mamba     the rows of some model types; the others stay

A class is checked with a small configuration made from its default one. Some defaults make no model; `COMPLETE` completes them.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECONDS = 240
"""Processor time of one class."""
WORDS = 14
"""Most words of a reason."""
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
COMPLETE: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
}
"""Values that default configurations lack, by model type."""
PATHS = {"packed": "exact, natively", None: "refused"}
OTHER = "exact, by its own layers"
HEAD = "| class | model types | computed | why not natively |\n| --- | --- | --- | --- |\n"
PICTURES_HEAD = "| class | computed | its text model |\n| --- | --- | --- |\n"
TESTED = {
    "Gemma3ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
}
"""Classes with pictures that `tests/engine/foreign/test_picture_decoder.py` samples and trains."""
NATIVE = {"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"}
"""Those of them that are computed natively."""
CHECKED = "checked when it is added"


def configuration(kind: str) -> Any:
    """Return the default configuration of a model type, completed."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind, **COMPLETE.get(kind, {}))
    if getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # Else attention sees what comes after.
    return config


def causal_classes() -> dict[str, list[str]]:
    """Return the model types of each causal class without pictures."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    kinds: dict[str, list[str]] = {}
    pictures = set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values())
    for kind, name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        if name in pictures:
            continue
        kinds.setdefault(name, []).append(kind)
    return dict(sorted(kinds.items()))


def row(name: str, kinds: list[str]) -> str:
    """Return the row of a class, checked with the first of its model types that makes a model."""
    for kind in kinds:
        path, why = checked(kind)
        if path is not None:
            break
    return f"| `{name}` | {', '.join(kinds)} | {PATHS.get(path, OTHER)} | {reason(why)} |"


def checked(kind: str) -> tuple[str | None, str]:
    """Return the path of a model type's class, None if it is refused, and why it is not computed natively."""
    from hud.engine.exactness.check import check_config

    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        verdict = check_config(configuration(kind))
    except TimeoutError:
        return None, f"its check takes more than {SECONDS} s"
    except Exception as error:  # The class refuses its own default values by any error.
        return None, f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return verdict.path, verdict.reason


def reason(text: str) -> str:
    """Return a reason as a table's cell."""
    text = re.sub(
        r"^\S+ (is not computed as by transformers|cannot be checked|cannot be saved and read again): ",
        "",
        text,
    )
    text = re.sub(r"^no small model of it can be made \((.*)\)\.?$", r"no small model: \1", text)
    text = re.sub(
        r"/tmp/\S+: ",
        "",
        text.removesuffix(". Use a model of a class that docs/models.md lists as exact."),
    )
    words = text.replace("|", "/").rstrip(".").split()
    return " ".join(words[:WORDS]) + (" …" if len(words) > WORDS else "")


def pictures(rows: dict[str, str]) -> Iterator[str]:
    """Yield the rows of classes with pictures; a text model that stands alone has a row of its own."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    kinds = {name: kind for kind, name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items()}
    for name, kind in sorted(kinds.items()):
        try:
            text = AutoConfig.for_model(kind).get_text_config().model_type
        except Exception:  # The class refuses its own default values by any error.
            text = kind
        inner = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text)
        shown = "none that stands alone"
        if inner in rows and inner != name:
            shown = f"`{inner}`: {rows[inner].split(' | ')[2]}"
            if inner == MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind):
                shown += "; loaded out of the whole model where the folder has no processor"
        tested = PATHS["packed"] if name in NATIVE else OTHER
        yield f"| `{name}` | {tested if name in TESTED else CHECKED} | {shown} |"


def read_rows(page: str) -> dict[str, str]:
    """Return the rows of the first table of the page, by class."""
    table = page.split(HEAD)[1].split("\n\n")[0] if HEAD in page else ""
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def counted(rows: dict[str, str]) -> str:
    """Return the sentence that counts the rows."""
    counts = Counter(line.split(" | ")[2] for line in rows.values())
    exact = counts[PATHS["packed"]] + counts[OTHER]
    return (
        f"Of {len(rows)} causal classes, {exact} are exact ({exact / len(rows):.0%}): {counts[PATHS['packed']]} natively, "
        f"{counts[OTHER]} by their own layers; {counts['refused']} are refused."
    )


def main(kinds: list[str]) -> None:
    """Check the classes of some model types, or all; write the page after each."""
    import transformers

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    signal.signal(signal.SIGVTALRM, _stop)
    for name, types in causal_classes().items():
        if kinds and not set(kinds) & set(types):
            continue
        page = PAGE.read_text(encoding="utf-8")
        rows = {**read_rows(page), name: row(name, types)}
        print(rows[name], flush=True)
        write(page, dict(sorted(rows.items())))


def write(page: str, rows: dict[str, str]) -> None:
    """Write the page with these rows."""
    import transformers

    start = page.split("<!-- generated")[0]
    version = f"`transformers` {transformers.__version__}"
    tables = [
        "<!-- generated by scripts/site/models.py -->",
        f"## Causal classes of {version}",
        counted(rows),
        HEAD + "\n".join(rows.values()),
        f"## Classes with pictures of {version}",
        "A class with pictures is checked with its folder's own [picture processor](pictures.md). Those with a result here are "
        "tested with every release. The last column names the text model inside, which can be saved and added by itself.",
        PICTURES_HEAD + "\n".join(pictures(rows)),
    ]
    PAGE.write_text(start + "\n\n".join(tables) + "\n", encoding="utf-8")


def _stop(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main(sys.argv[1:])
