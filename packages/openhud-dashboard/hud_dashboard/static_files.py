"""Static files: read and compressed once, and cached by browsers forever, since addresses contain a digest.
The digest is of the whole folder: scripts import each other by relative paths, so all addresses change together.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from hud.errors import NotFoundError

FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER = "public, max-age=31536000, immutable"

router = APIRouter()


@cache
def digest() -> str:
    """Return the digest of this release's static files."""
    checksum = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            checksum.update(str(path.relative_to(FOLDER)).encode())
            checksum.update(path.read_bytes())
    return checksum.hexdigest()[:12]


def address(name: str) -> str:
    """Return the address of a static file."""
    return f"/static/{digest()}/{name}"


@router.get("/static/{version}/{name:path}")
def static_file(request: Request, version: str, name: str) -> Response:
    """A static file; an address of another release gets the current file, uncached."""
    file = _files().get(name)
    if file is None:
        raise NotFoundError(f"There is no file {name!r}.")
    plain, packed, kind = file
    headers = {
        "cache-control": FOREVER if version == digest() else "no-cache",
        "vary": "accept-encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(packed, media_type=kind, headers={**headers, "content-encoding": "gzip"})
    return Response(plain, media_type=kind, headers=headers)


@router.get("/favicon.ico")
def favicon(request: Request) -> Response:
    """The icon, at the conventional path."""
    return static_file(request, digest(), "icon.svg")


@cache
def _files() -> dict[str, tuple[bytes, bytes, str]]:
    contents = {}
    for path in FOLDER.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            kind = KINDS.get(path.suffix, "text/plain; charset=utf-8")
            contents[path.relative_to(FOLDER).as_posix()] = (
                content,
                gzip.compress(content, 9, mtime=0),
                kind,
            )
    return contents
