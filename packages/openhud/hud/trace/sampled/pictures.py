"""Pictures among the tokens of a sample: position, file and pixels of each."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict


class Picture(BaseModel):
    """A picture of a token sequence.

    Its tokens are those of the model's picture token; other tokens (row breaks, markers) may stand among them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    """Position of its first token."""
    tokens: int
    """Number of its tokens."""
    sha256: str
    """SHA-256 of the file's bytes, hexadecimal."""
    pixels: str
    """SHA-256 of the values that the model's processor makes of the file, hexadecimal."""
    data: str | None = None
    """Base64 of the file; None where it is stored under `sha256`."""

    @property
    def identity(self) -> tuple[int, str]:
        """Position and pixels: equal token ids with equal identities are equal inputs."""
        return self.start, self.pixels

    @property
    def file(self) -> bytes:
        """The file's bytes."""
        assert self.data is not None
        return base64.b64decode(self.data)


def pictures_within(pictures: Sequence[Picture], length: int) -> tuple[Picture, ...]:
    """Return the pictures that begin within the first `length` tokens."""
    return tuple(picture for picture in pictures if picture.start < length)


def same_pictures(ours: Sequence[Picture], theirs: Sequence[Picture]) -> bool:
    """Return whether two lists of pictures have the same positions and pixels."""
    return [picture.identity for picture in ours] == [picture.identity for picture in theirs]
