"""A GGUF file that is read: its metadata, its tensors, and the reasons against reading it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.gguf_reader import ReaderTensor

from hud.errors import UsageError

MOST_TENSORS = 1 << 16
"""Largest number of tensors; a dense model of 100 layers has about 1,200."""
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, OSError)  # fmt: skip
"""Kinds of errors for bytes that are no GGUF file, and for metadata of another type."""


class BoundedReader(GGUFReader):
    """A reader whose lists and texts end within the file: the package's own reads empty values beyond its end, any number of them."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError(f"it ends before byte {int(offset):,} of its own count")
        return super()._get(offset, dtype, count, override_order)


class GgufFile:
    """Metadata and tensors of one GGUF file, mapped and not copied."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` for a damaged file, and for one that is no complete model."""
        self.path = path
        try:
            self._reader = BoundedReader(path)
            self.architecture = str(self.value("general.architecture", "?"))
            self._refuse_partial()
        except DAMAGED as error:
            if GGMLQuantizationType.__name__ in str(error):
                raise self.problem(
                    f"holds weights in a quantization that the gguf package does not know ({error})"
                ) from error
            raise self.problem(f"is damaged or incomplete ({error or 'no data'})") from error

    def problem(self, predicate: str) -> UsageError:
        """Return the error for this file."""
        return UsageError(f"{self.path} {predicate}. Use another GGUF file of the model.")

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of the metadata: a number, a truth value, a text or a list of them."""
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:
        """Return a value under the architecture's own prefix, such as `llama.block_count`."""
        return self.value(f"{self.architecture}.{key}", default)

    @cached_property
    def tensors(self) -> dict[str, ReaderTensor]:
        """Tensors by their names in the file."""
        return {tensor.name: tensor for tensor in self._reader.tensors}

    def _refuse_partial(self) -> None:
        """Raise `UsageError` for an adapter, a part of a model, and tensors that share bytes."""
        if self.value("general.type", "model") != "model":
            raise self.problem(f"is no model but {self.value('general.type')!r}")
        if self.value("split.count", 1) > 1:
            raise self.problem(
                f"is one of {self.value('split.count')} parts; merge them first: llama-gguf-split --merge"
            )
        if self._reader.byte_order == "S":
            raise self.problem("is in the byte order of another kind of machine")
        if len(self.tensors) > MOST_TENSORS:
            raise self.problem(
                f"holds {len(self.tensors):,} tensors; {MOST_TENSORS:,} are the most"
            )
        # Tensors over the same bytes would unpack to any size.
        if sum(tensor.n_bytes for tensor in self._reader.tensors) > self.path.stat().st_size:
            raise self.problem("names more bytes of weights than it holds")
