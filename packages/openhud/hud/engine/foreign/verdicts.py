"""Verdicts of the check of exactness: how a model is computed exactly, or why it is refused.

A verdict counts for one configuration and one version of everything that computes it. It is recorded under `HUD_HOME`, found by
load and add, and made by a process of its own: a stranger's configuration may take any memory and time, or end the process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hud import settings
from hud.durable_files import write_file
from hud.engine.config import PROCESSOR_FILES, DecoderConfig
from hud.errors import UsageError
from hud.processes.limited import run_limited

ForeignPath = Literal["packed", "chunks", "tokens", "turns", "recomputed"]
"""Ways of computing a model outside the family: `packed` with our attention and key-value cache, or one sequence at a time, with a
state of the model's own that continues with any new tokens (`chunks`), one at a time (`tokens`) or with sampled tokens alone
(`turns`: each prompt is computed from its beginning), or without a state."""

PROCESS = "hud.engine.exactness.process"
MEMORY = 6 << 30
"""Memory of a check, in bytes."""
CPU_SECONDS = 120
"""Processor time of a check, the import of `transformers` included."""
_VERSION = 3
"""Raised when the check or the decoders change what they compute."""
_IRRELEVANT = {
    "_name_or_path",
    "architectures",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "use_cache",
}
"""Values of a configuration that no computation depends on."""


@dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    path: ForeignPath | None
    """None: refused."""
    reason: str = ""
    """Part that differs, and by how much, where it is refused or not computed by the fastest path."""


def exact_path(folder: Path, config: DecoderConfig) -> ForeignPath:
    """Return how a folder's model is computed exactly; checks it, which takes seconds, unless the verdict is on record.

    Raises `UsageError` for a model that is not, or whose check ends early, which is not recorded.
    """
    record = _record(folder, config)
    verdict = _read(record)
    if verdict is None:
        verdict = checked(folder)
        write_file(record, (json.dumps(asdict(verdict)) + "\n").encode())
    if verdict.path is None:
        raise UsageError(f"{folder / 'config.json'}: {verdict.reason}")
    return verdict.path


def recorded_verdict(folder: Path, config: DecoderConfig) -> Verdict | None:
    """Return the verdict on a folder's model that is on record for these versions, or None."""
    return _read(_record(folder, config))


def _read(record: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(record.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _record(folder: Path, config: DecoderConfig) -> Path:
    """Return the place of the record of a configuration, by whatever may change what is computed."""
    relevant = _relevant(folder, config)
    versions = [importlib.metadata.version(name) for name in ("openhud", "torch", "transformers")]
    text = json.dumps([_VERSION, versions, relevant], sort_keys=True, default=str)
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return settings.load().home / "exactness" / f"{key}.json"


def _relevant(folder: Path, config: DecoderConfig) -> Any:
    """Return the values of a configuration that a verdict depends on; of our own family they are no numbers."""
    if config.ours:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _without_numbers({key: raw[key] for key in raw.keys() - _IRRELEVANT})
    from transformers import AutoConfig  # Seconds to import.

    # A saved configuration has defaults that a published one leaves out.
    raw = AutoConfig.from_pretrained(folder, trust_remote_code=False).to_dict()
    relevant: dict[str, Any] = {key: raw[key] for key in raw.keys() - _IRRELEVANT}
    if config.reads_pictures:
        files = [folder / name for name in PROCESSOR_FILES]
        relevant["processor"] = [path.read_text("utf-8") if path.exists() else "" for path in files]
    return relevant


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items()}
    return None if type(value) in (int, float) or isinstance(value, list) else value


def checked(folder: Path) -> Verdict:
    """Return the verdict of a check in a process of its own, without the record. Raises `UsageError` where it ends early."""
    # Small matrices gain nothing from threads, and kernels take longer to compile than the check.
    variables = {"OMP_NUM_THREADS": "1", "HUD_CPU_KERNELS": "0"}
    done = run_limited(
        PROCESS, str(folder), memory=MEMORY, seconds=CPU_SECONDS, variables=variables
    )
    if done.returncode == 0:
        return Verdict(**json.loads(done.stdout.splitlines()[-1]))
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    if done.returncode < 0:
        last = f"it took more than {CPU_SECONDS} s of processor time, or signal {-done.returncode} ended it"
    raise UsageError(
        f"{folder / 'config.json'}: a small model of its class could not be checked: {last}."
    )
