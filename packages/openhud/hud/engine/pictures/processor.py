"""The picture processor of a model folder: `transformers`' own preprocessing, and the text that stands for a picture.

Images are processed by Pillow and NumPy, also where torchvision is installed: pixels must be the same on every machine.
"""

from __future__ import annotations

import hashlib
import io
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from transformers import (
    PROCESSOR_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    ImageProcessingMixin,
)

from hud.engine.config import has_processor
from hud.errors import UsageError, reason_of

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats of pictures that are read."""
MOST_PIXELS = 50_000_000
"""Most pixels of a picture: the sizes in a small file may claim any number."""
_CACHED = 1024
"""Number of pictures whose results are kept, without their values."""
_CACHED_BYTES = 256 << 20
"""Size of the values that are kept: a screenshot's take some ten MiB."""
_OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
"""Outputs of a processor that are not made of pictures."""


@dataclass(frozen=True)
class ProcessedPicture:
    """Result of processing one picture."""

    sha256: str
    pixels: str
    """As in `hud.trace.sampled.pictures.Picture`."""
    text: str
    """Text that replaces the placeholder in a rendered conversation."""
    tokens: int
    """Number of the picture tokens in it."""


class PictureProcessor:
    """The processor of one folder."""

    def __init__(self, processor: Any, token: int) -> None:
        """`token`: the id that stands for a part of a picture."""
        self._processor = processor
        self.token = token
        self.placeholder: str = processor.image_token
        """Text that a chat template writes for a picture."""
        self._pictures: OrderedDict[str, ProcessedPicture] = OrderedDict()
        self._values: OrderedDict[tuple[str, ...], dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> PictureProcessor:
        return self  # Copied decoders share it: it depends on no weights.

    def processed(self, file: bytes) -> ProcessedPicture:
        """Return the result for a file. Raises `UsageError` for a file that is no picture."""
        digest = hashlib.sha256(file).hexdigest()
        with self._lock:
            if digest in self._pictures:
                self._pictures.move_to_end(digest)
                return self._pictures[digest]
        values, text, tokens = self._process([file])
        picture = ProcessedPicture(digest, _hash_of(values), text, tokens)
        with self._lock:
            self._pictures[digest] = picture
            self._values[(digest,)] = values
            self._trim()
        return picture

    def values(self, files: Sequence[bytes]) -> dict[str, Tensor]:
        """Return the model's inputs for the pictures of one sequence, in order, by argument name."""
        digests = tuple(hashlib.sha256(file).hexdigest() for file in files)
        with self._lock:
            if digests in self._values:
                self._values.move_to_end(digests)
                return self._values[digests]
        values, *_ = self._process(files)
        with self._lock:
            self._values[digests] = values
            self._trim()
        return values

    def _process(self, files: Sequence[bytes]) -> tuple[dict[str, Tensor], str, int]:
        """Return the inputs of pictures, the texts that stand for them, joined, and the number of their picture tokens."""
        images = [_image(file) for file in files]
        try:
            # The sampler's thread may ask first; tensors of its mode cannot be trained on.
            with torch.inference_mode(False):
                output = self._processor(
                    text=[self.placeholder * len(images)],
                    images=images,
                    return_tensors="pt",
                    return_text_replacement_offsets=True,
                )
        except Exception as error:  # transformers raises many kinds of errors
            raise UsageError(
                f"The model's processor refuses a picture of {images[0].width} x {images[0].height} pixels "
                f"({reason_of(error)})."
            ) from error
        replaced = output.pop("text_replacement_offsets")[0]
        text = "".join(item["replacement"] for item in replaced)
        tokens = int((output["input_ids"] == self.token).sum())
        return {name: value for name, value in output.items() if name not in _OF_TEXT}, text, tokens

    def _trim(self) -> None:
        while len(self._pictures) > _CACHED:
            self._pictures.popitem(last=False)
        while len(self._values) > 1 and sum(map(_bytes_of, self._values.values())) > _CACHED_BYTES:
            self._values.popitem(last=False)


@lru_cache(maxsize=8)
def picture_processor(folder: Path) -> PictureProcessor | None:
    """Return the processor of a folder, None for a folder without one: its model is used for text alone.

    Raises `UsageError` for a processor that cannot be loaded.
    """
    if not has_processor(folder):
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        return PictureProcessor(_loaded(folder, config), config.image_token_id)
    except UsageError:
        raise
    except Exception as error:  # transformers raises many kinds of errors
        raise UsageError(
            f"{folder}: its picture processor cannot be loaded ({reason_of(error)})."
        ) from error


def _loaded(folder: Path, config: Any) -> Any:
    """Return the `transformers` processor of a folder, without one for videos."""
    local = {"trust_remote_code": False, "local_files_only": True}
    if type(config) not in PROCESSOR_MAPPING:
        raise UsageError(f"{folder}: transformers has no processor for {config.model_type!r}.")
    # Videos need torchvision, and are not read; the class would refuse to be made without their processor.
    base: Any = PROCESSOR_MAPPING[type(config)]
    kind: Any = type(base.__name__, (base,), {"check_argument_for_proper_class": lambda *_: None})
    parts: list[Any] = []
    images: Any = AutoImageProcessor
    without: Any = ImageProcessingMixin
    for name in kind.get_attributes():
        if name == "tokenizer":
            parts.append(AutoTokenizer.from_pretrained(folder, **local))
        elif name == "image_processor":
            parts.append(images.from_pretrained(folder, backend="pil", **local))
        else:
            parts.append(without(model_input_names=[]))
    settings, _ = kind.get_processor_dict(folder, local_files_only=True)
    processor = kind.from_args_and_dict(parts, settings)
    if not isinstance(getattr(processor, "image_token", None), str):
        raise UsageError(f"{folder}: {base.__name__} has no placeholder for pictures.")
    return processor


def _image(file: bytes) -> Image.Image:
    """Return the image of a file, as `transformers` loads it. Raises `UsageError` for any other file, and for too many pixels."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(file), formats=FORMATS)
            if image.width * image.height > MOST_PIXELS:
                raise UsageError(
                    f"A picture has {image.width} x {image.height} pixels; {MOST_PIXELS:,} are the most."
                )
            return ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError:
        raise UsageError(
            f"A picture is of no format that is read here ({', '.join(FORMATS)})."
        ) from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"A picture cannot be read: {error}.") from error


def _bytes_of(values: dict[str, Tensor]) -> int:
    return sum(value.nbytes for value in values.values())


def _hash_of(values: dict[str, Tensor]) -> str:
    """Return the SHA-256 of the values of a picture, with their names and shapes."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(torch.as_tensor(values[name]).numpy())
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
