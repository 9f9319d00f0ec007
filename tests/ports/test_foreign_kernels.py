"""A kernel backend in a folder outside the repository is used by its entry point alone; the core has not heard of it."""

import os
import subprocess
import sys

import pytest

BACKEND = """
from hud.engine.kernels import KernelBackend
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.sample.plain_runner import PlainRunner

class ForeignRunner(PlainRunner):
    pass

class ForeignPasses(PlainPasses):
    pass

class Backend(KernelBackend):
    device = "cpu"

    def runner(self, decoder, *, adapters):
        return None if adapters else ForeignRunner

    def pass_computer(self, decoder):
        return ForeignPasses(decoder) if decoder.config.ours else None

BACKEND = Backend()
"""

PROGRAM = """
from hud.errors import UsageError
from hud.engine.config import DecoderConfig
from hud.engine.learn.training_pass import pass_computer
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.adapter_bank import AdapterBank
from hud.engine.sample.plain_runner import runner_type

config = DecoderConfig(
    model_type="qwen3", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16,
)
decoder = ReferenceDecoder(config).requires_grad_(False)
try:
    print(runner_type(decoder).__name__, runner_type(decoder, AdapterBank(decoder)).__name__)
    print(type(pass_computer(decoder)).__name__)
except UsageError as error:
    print(error)
"""


@pytest.fixture
def foreign(tmp_path):
    """Return what runs the program with a package installed in a folder: its output."""

    def run(entry, **variables):
        (tmp_path / "foreign_kernels.py").write_text(BACKEND)
        information = tmp_path / "foreign_kernels-1.0.dist-info"
        information.mkdir(exist_ok=True)
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: foreign-kernels\nVersion: 1.0\n"
        )
        (information / "entry_points.txt").write_text(f"[hud.runners]\nforeign = {entry}\n")
        return subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(tmp_path), **variables},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    return run


@pytest.mark.slow
def test_its_runner_and_its_passes_are_used(foreign):
    shown = foreign("foreign_kernels:BACKEND", HUD_CPU_KERNELS="0")
    assert shown.split() == ["ForeignRunner", "PlainRunner", "ForeignPasses"]


@pytest.mark.slow
def test_two_backends_of_a_device_are_refused_by_their_names(foreign):
    shown = foreign("foreign_kernels:BACKEND", HUD_CPU_KERNELS="1")
    assert shown == (
        "Several kernels are registered for cpu: cpu, foreign. Uninstall all but one, or switch the others off.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["foreign_kernels:MISSING", "nowhere:BACKEND"])
def test_one_that_cannot_be_imported_is_named_with_its_distribution(foreign, entry):
    shown = foreign(entry)
    assert shown.startswith("hud.runners 'foreign' of foreign-kernels cannot be imported")
    assert len(shown.splitlines()) == 1


@pytest.mark.slow
def test_what_is_no_backend_is_refused(foreign):
    shown = foreign("foreign_kernels:ForeignRunner")
    assert "it must be hud.engine.kernels.KernelBackend" in shown


@pytest.mark.slow
def test_without_any_backend_the_reference_computes():
    program = "from hud.engine import kernels\nkernels._registered = dict\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["PlainRunner", "PlainRunner", "PlainPasses"]
