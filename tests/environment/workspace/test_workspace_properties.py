"""What holds for any text and any request: patches can be applied, and the proxy judges the host that it goes to."""

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.environment.workspace.files import changes
from hud.environment.workspace.files.changes import unified
from hud.environment.workspace.network.proxy import _is_public, _Refused, _request

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "- a\n", "@@\n"]), max_size=40)
HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")


def text(lines, ends):
    """Lines whose last may lack its end."""
    return lines if ends or not lines else [*lines[:-1], "no end"]


def applied(before, diff):
    """Return what a unified diff makes of `before`, and check all that it says of it."""
    made, at = [], 0
    lines = diff.split("\n")[2:-1]
    while lines:
        start, count, new_start, new_count = map(int, HUNK.fullmatch(lines.pop(0)).groups())
        start -= count > 0
        made += before[at:start]
        assert len(made) == new_start - (new_count > 0)
        old, new = [], []
        while len(old) < count or len(new) < new_count:
            kind, line = lines[0][0], lines.pop(0)[1:] + "\n"
            if lines and lines[0].startswith("\\"):
                lines.pop(0)
                line = line[:-1]
            old += [line] * (kind in " -")
            new += [line] * (kind in " +")
        assert before[start : start + count] == old
        made += new
        at = start + count
    return made + before[at:]


@pytest.mark.slow
@given(LINES, LINES, st.booleans(), st.booleans(), st.booleans())
def test_patches_can_be_applied(before, after, old_ends, new_ends, in_one_piece):
    before, after = text(before, old_ends), text(after, new_ends)
    with pytest.MonkeyPatch.context() as patch:
        if in_one_piece:
            patch.setattr(changes, "_COMPARED_LINES", 0)
        assert applied(before, unified(before, after, "a/f", "b/f")) == after


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no `patch` here")
def test_the_program_patch_takes_them_too(tmp_path):
    before = [f"{number % 7}\n" for number in range(60)]
    after = [*before[:10], "new\n", *before[12:50], "7\n", *before[50:59], "no end"]
    (tmp_path / "f").write_text("".join(before))
    diff = unified(before, after, "a/f", "b/f")
    subprocess.run(["patch", "-s", "-p1"], input=diff, text=True, cwd=tmp_path, check=True)
    assert (tmp_path / "f").read_text() == "".join(after)


HOSTS = st.from_regex(r"[a-z0-9.\-@:/\[\]%?#\\]{0,30}", fullmatch=True)


@pytest.mark.slow
@given(
    st.sampled_from(["CONNECT ", "GET http://", "POST HTTP://", "GET ftp://"]), HOSTS, st.binary()
)
def test_what_the_proxy_sends_on_names_the_host_that_was_judged(method, target, rest):
    head = f"{method}{target} HTTP/1.1\r\nHost: elsewhere\r\n".encode() + rest + b"\r\n\r\n"
    try:
        request = _request(head)
    except _Refused:
        return
    assert request.host
    assert request.host == request.host.lower()
    if request.method != "CONNECT":
        named = [line for line in request.head.split(b"\r\n") if line.lower().startswith(b"host:")]
        assert len(named) == 1
        assert named[0].decode("latin-1").lower().startswith(f"host: {request.host}"), named


@pytest.mark.slow
@given(st.ip_addresses())
def test_only_global_addresses_are_public(address):
    if _is_public(str(address)):
        assert address.is_global
        assert not address.is_loopback
        assert not address.is_private


@pytest.mark.parametrize(
    "address",
    [
        *["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"],
        *["100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"],
        *[
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "2002:7f00:1::",
            "64:ff9b::a00:1",
            "ff02::1",
        ],
    ],
)
def test_addresses_of_this_machine_and_its_network_are_not_public(address):
    assert not _is_public(address)
