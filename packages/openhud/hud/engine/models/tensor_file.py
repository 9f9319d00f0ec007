"""Writing safetensors files: what the system refuses is an `OSError`, as it is of every other file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

_NUMBER = re.compile(r"\(os error (\d+)\)")


def write_tensors(
    tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a file. Raises `OSError` if it cannot be written, such as on a full disk."""
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        number = _NUMBER.search(str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
