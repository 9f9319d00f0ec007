"""Process that turns one GGUF file into a Hugging Face folder: python -m hud_integrations.gguf.conversion FILE FOLDER DTYPE BYTES SECONDS

A file is a stranger's: its lists may claim any length. The limits of this process end what would take a machine's memory,
or hours.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from hud.errors import UsageError
from hud.processes.limited import enter_limits
from hud_integrations.gguf.conversion_process import REFUSED


def convert(path: Path, folder: Path, dtype: str | None) -> None:
    """Write a file's model to an existing folder; `dtype` None: bfloat16, or float32 for a file whose matrices are float32.

    Raises `UsageError` for a file that cannot be read exactly, `OSError` for a disk that is full.
    """
    from hud.engine.pretrained import DTYPES
    from hud_integrations.gguf.configuration import decoder_config
    from hud_integrations.gguf.model_file import DAMAGED, GgufFile
    from hud_integrations.gguf.tensors import write_weights
    from hud_integrations.gguf.vocabulary import write_tokenizer

    file = GgufFile(path)
    try:
        config = decoder_config(file)
        if dtype is None:
            matrices = {t.tensor_type.name for t in file.tensors.values() if len(t.shape) > 1}
            dtype = "float32" if matrices == {"F32"} else "bfloat16"
        write_tokenizer(file, folder, context=config.max_position_embeddings)
    except DAMAGED as error:
        if isinstance(error, OSError):
            raise
        raise file.problem(
            f"describes no model ({type(error).__name__}: {error or 'no data'})"
        ) from error
    write_weights(file, config, folder, DTYPES[dtype])
    described = json.dumps(replace(config, dtype=dtype).to_dict(), indent=2)
    (folder / "config.json").write_text(described + "\n", encoding="utf-8")


def main() -> int:
    """Convert the file that the parent names, within its limits; print the reason against it."""
    path, folder, dtype = enter_limits()
    try:
        convert(Path(path), Path(folder), dtype or None)
    except UsageError as error:
        sys.stdout.write(str(error))
        return REFUSED
    except OSError as error:
        sys.stdout.write(f"{path} cannot be unpacked to {folder}: {error.strerror or error}.")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
