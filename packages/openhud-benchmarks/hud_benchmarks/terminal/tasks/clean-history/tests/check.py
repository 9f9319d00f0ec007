"""Compares the cleaned history, commit by commit, with the original one in which the token is replaced."""

import re
import subprocess
import tempfile
from pathlib import Path

TOKEN = re.compile(rb"tk_live_[0-9a-f]+")
LIMITS = [
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "protocol.allow=never",
    "-c",
    "protocol.file.allow=always",
]


def git(folder: str, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["/usr/bin/git", *LIMITS, "-C", folder, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True).stdout


def history(folder: str) -> dict[str, bytes]:
    """Return what the references stand for: each commit with its parents' places, who, when, message and files."""
    named = {}
    references = git(folder, "for-each-ref", "--format=%(refname)").decode().split()
    for name in references:
        order = git(folder, "rev-list", "--reverse", "--topo-order", name).decode().split()
        places = {commit: str(place) for place, commit in enumerate(order)}
        described = b""
        for commit in order:
            shown = git(
                folder,
                "show",
                "-s",
                "--format=%P%n%an%n%ae%n%at %ai%n%cn%n%ce%n%ct %ci%n%B",
                commit,
            )
            parents, _, rest = shown.partition(b"\n")
            described += (
                " ".join(places[parent] for parent in parents.decode().split()).encode()
                + b"\n"
                + rest
            )
            for line in git(folder, "ls-tree", "-r", commit).splitlines():
                mode, _, blob, path = line.split(None, 3)
                described += (
                    mode + b" " + path + b"\n" + git(folder, "cat-file", "blob", blob.decode())
                )
        named[name] = described
    return named


def main() -> float:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        git(first, "init", "-q", "--bare")
        git(first, "fast-import", "--quiet", stdin=Path("/tests/shop.stream").read_bytes())
        bundle = Path("/app/clean.bundle")
        if bundle.is_symlink() or not bundle.is_file() or bundle.stat().st_size > 1_000_000:
            return 0.0
        git(second, "init", "-q", "--bare")
        try:
            git(second, "bundle", "verify", str(bundle))
            git(second, "fetch", "-q", str(bundle), "refs/*:refs/*")
            left = history(second)
            # Objects that no reference reaches would be published, too.
            objects = git(second, "cat-file", "--batch-all-objects", "--batch")
        except (subprocess.SubprocessError, ValueError, KeyError):
            return 0.0
        wanted = {name: TOKEN.sub(b"REMOVED", text) for name, text in history(first).items()}
        return float(left == wanted and not TOKEN.search(objects))


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
