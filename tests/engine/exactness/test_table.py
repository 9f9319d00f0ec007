"""The page of exact models lists every causal class of the installed `transformers`, and its rows are what the check finds."""

import importlib.util

import pytest
import transformers
from tests.docs.blocks import ROOT

spec = importlib.util.spec_from_file_location("models", ROOT / "scripts" / "site" / "models.py")
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)

FAST = ("gpt2", "qwen3_moe")
SLOW = (
    "bart",
    "bloom",
    "deepseek_v2",
    "falcon_mamba",
    "gemma3_text",
    "glm4_moe",
    "llama4_text",
    "nemotron_h",
    "qwen3_next",
)


@pytest.fixture(scope="module")
def rows():
    page = models.PAGE.read_text()
    if f"`transformers` {transformers.__version__}" not in page:
        pytest.skip("the page is of another release of transformers")
    return models.read_rows(page)


def test_every_causal_class_has_a_row_and_four_of_five_are_exact(rows):
    assert list(rows) == list(models.causal_classes())
    computed = [line.split(" | ")[2] for line in rows.values()]
    assert set(computed) <= {*models.PATHS.values(), models.OTHER}
    assert computed.count("refused") <= len(computed) / 5
    assert models.counted(rows) in models.PAGE.read_text()


@pytest.mark.parametrize(
    "kind", [*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)]
)
def test_a_row_is_what_the_check_finds(rows, kind):
    name, kinds = next(item for item in models.causal_classes().items() if kind in item[1])
    computed = [line.split(" | ")[2] for line in (models.row(name, kinds), rows[name])]
    assert computed[0] == computed[1]
