"""Archives that were made to get out of their folder, to fill memory or to break the reader."""

import gzip
import io
import os
import resource
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.fleet.builds.archives import unpack


def add(tar, name, kind=tarfile.REGTYPE, data=b"", **more):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, len(data)
    for key, value in more.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        yield path, tar


def refuse(path, tar, match=None):
    """Unpack three folders down, expect a refusal, and see that nothing but the archive is left."""
    tar.close()
    top = path.parent
    with pytest.raises(UsageError, match=match) as raised:
        unpack(path, top / "x" / "y" / "out")
    assert str(top) not in str(raised.value), "where the server keeps it is its own affair"
    assert {entry.name for entry in top.rglob("*")} == {"a.tar.gz", "x", "y"}


def test_links_too_long_to_resolve_lead_nowhere(archive):
    """CVE-2025-4517: beyond PATH_MAX, resolving stops, and what stops inside was taken for inside."""
    path, tar = archive
    long, steps = "d" * 247, "abcdefghijklmnop"
    below = ""
    for step in steps:
        add(tar, os.path.join(below, long), tarfile.DIRTYPE)
        add(tar, os.path.join(below, step), tarfile.SYMTYPE, linkname=long)
        below = os.path.join(below, long)
    bridge = "/".join((*steps, "l" * 254))
    add(tar, bridge, tarfile.SYMTYPE, linkname="../" * len(steps))
    add(tar, "escape", tarfile.SYMTYPE, linkname=f"{bridge}/../..")
    add(tar, "escape/pwned", data=b"owned")
    refuse(path, tar)


def test_a_chain_of_links_that_only_looks_as_if_it_stayed_inside(archive):
    path, tar = archive
    add(tar, "a/b/file", data=b"x")
    add(tar, "a/b/up", tarfile.SYMTYPE, linkname="../..")
    add(tar, "out", tarfile.SYMTYPE, linkname="a/b/up/../..")
    refuse(path, tar, "outside of it")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_nothing_is_written_through_a_link(archive, kind):
    path, tar = archive
    add(tar, "inside/file", data=b"x")
    add(tar, "link", tarfile.SYMTYPE, linkname="inside")
    add(tar, "link/made", kind, linkname="file" if kind == tarfile.SYMTYPE else "")
    refuse(path, tar)


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "a/../../x", "a/../b"])
def test_names_that_leave_or_pretend_to(archive, name):
    path, tar = archive
    add(tar, name, data=b"x")
    refuse(path, tar, "outside of it")


def test_hard_links_are_copies_of_earlier_files_and_of_nothing_else(archive):
    path, tar = archive
    add(tar, "first", data=b"same", mode=0o755)
    add(tar, "second", tarfile.LNKTYPE, linkname="first")
    tar.close()
    out = path.parent / "out"
    assert unpack(path, out) == 2
    assert (out / "second").read_bytes() == b"same"
    assert (out / "second").stat().st_nlink == 1
    assert os.access(out / "second", os.X_OK)


def test_hard_links_to_what_is_not_in_the_archive_are_refused(archive):
    path, tar = archive
    add(tar, "password", tarfile.LNKTYPE, linkname="later")
    add(tar, "later", data=b"x")
    refuse(path, tar, "not an earlier file")


def test_hard_links_count_towards_the_size(archive):
    path, tar = archive
    add(tar, "zeros", data=bytes(600 << 10))
    for number in range(4):
        add(tar, f"copy{number}", tarfile.LNKTYPE, linkname="zeros")
    tar.close()
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpack(path, path.parent / "out", most_bytes=1 << 20)


def test_links_inside_stay_and_links_to_nothing_go(archive):
    path, tar = archive
    add(tar, "pkg/a.txt", data=b"x")
    add(tar, "link", tarfile.SYMTYPE, linkname="pkg/a.txt")
    add(tar, "pkg/back", tarfile.SYMTYPE, linkname="../link")
    add(tar, "gone", tarfile.SYMTYPE, linkname="pkg/none")
    add(tar, "loop", tarfile.SYMTYPE, linkname="loop")
    tar.close()
    out = path.parent / "out"
    unpack(path, out)
    assert (out / "pkg/back").read_bytes() == b"x"
    assert sorted(entry.name for entry in out.iterdir()) == ["link", "pkg"]


@pytest.mark.slow
def test_a_header_made_up_to_fill_memory_is_refused_unread(tmp_path):
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        header = tarfile.TarInfo("x")
        header.type, header.size = tarfile.GNUTYPE_LONGNAME, 400 << 20
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(400):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="oversized header|headers of the archive are too large"):
        unpack(path, tmp_path / "out")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, "KiB"


def test_headers_without_end_are_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    header = tarfile.TarInfo("x").create_pax_global_header({"a": "b"})
    with gzip.open(path, "wb", 1) as file:
        file.write(header * 5000)
    with pytest.raises(UsageError):
        unpack(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_without_end_are_refused(archive):
    path, tar = archive
    add(tar, "/".join("a" * 2000), data=b"x")
    refuse(path, tar, "folders deep")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        tarfile.REGTYPE,
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE)
        ),
    ],
)
def test_folders_that_only_stand_in_names_count_as_files(archive, kind):
    path, tar = archive
    for number in range(1000):
        add(tar, f"{number}/{'/'.join('a' * 57)}", kind, linkname="b")
    refuse(path, tar, "more than 20,000 files and folders")
    assert path.stat().st_size < 100_000


def test_one_folder_named_again_and_again_counts_each_time(archive):
    path, tar = archive
    for _ in range(50):
        add(tar, "a", tarfile.DIRTYPE)
    tar.close()
    with pytest.raises(UsageError, match="more than 40 files and folders"):
        unpack(path, path.parent / "out", most_files=40)


def test_every_member_and_every_new_folder_is_one(archive):
    path, tar = archive
    add(tar, "a/b/file", data=b"x")
    add(tar, "a/b/other", data=b"x")
    add(tar, "a/link", tarfile.SYMTYPE, linkname="b/file")
    tar.close()
    with pytest.raises(UsageError, match="more than 4 "):
        unpack(path, path.parent / "out", most_files=4)
    assert unpack(path, path.parent / "out", most_files=5) == 3


@pytest.mark.parametrize("name", ["a/" * 40 + "b" * 1000, "a\udcff", "x" * 300])
def test_names_that_no_file_should_have_are_refused(archive, name):
    path, tar = archive
    add(tar, name, data=b"x")
    refuse(path, tar, "name")


@pytest.mark.slow
def test_extension_headers_that_fill_memory_are_refused(tmp_path):
    """Each is small enough, and `tarfile` keeps them all."""
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", 1) as file:
        for number in range(60):
            values = {f"{number}.{place}": "v" for place in range(30_000)}
            file.write(tarfile.TarInfo("x").create_pax_global_header(values))
            file.write(tarfile.TarInfo(f"{number}").tobuf())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="headers"):
        unpack(path, tmp_path / "out", most_files=2000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100 << 10, "KiB"


def test_times_and_modes_of_the_archive_are_not_the_server_s(archive):
    path, tar = archive
    add(tar, "closed", tarfile.DIRTYPE, mode=0)
    add(tar, "closed/file", data=b"x", mode=0o6777, mtime=1e30)
    tar.close()
    unpack(path, path.parent / "out")
    file = path.parent / "out/closed/file"
    assert file.stat().st_mode & 0o7777 == 0o755
    assert file.read_bytes() == b"x"


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 20), noise=st.binary(min_size=1, max_size=64))
def test_damage_ends_in_a_refusal_or_in_a_folder_and_nothing_else(tmp_path_factory, place, noise):
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for number in range(4):
            add(tar, f"d/file{number}", data=os.urandom(4000))
            add(tar, f"link{number}", tarfile.SYMTYPE, linkname=f"d/file{number}")
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place : place + len(noise)] = noise
    path.write_bytes(content)
    try:
        unpack(path, folder / "out")
    except UsageError:
        assert {entry.name for entry in folder.iterdir()} == {"a.tar.gz"}
    else:
        assert {entry.name for entry in folder.iterdir()} == {"a.tar.gz", "out"}
