"""Source goes into an archive without secrets, and comes out of one without surprises."""

import contextlib
import io
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.client.archives import pack
from hud.errors import UsageError
from hud.fleet.builds.archives import unpack


def write(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def member(name, kind=tarfile.REGTYPE, **more):
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in more.items():
        setattr(made, key, value)
    return made


def test_what_is_packed_comes_out_and_what_is_ignored_does_not(tmp_path):
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    for name in ("env.py", "pkg/a.py", "pkg/a.pyc", ".env", "prod.env", "big.bin", "keep.bin"):
        (source / name).write_text(name)
    (source / ".gitignore").write_text("*.bin\n!keep.bin\n!.env\n")
    (source / "link").symlink_to("/etc/passwd")
    archive = tmp_path / "a.tar.gz"
    with archive.open("wb") as file:
        packed = pack(source, file)
    assert packed.files == [".gitignore", "env.py", "keep.bin", "pkg/a.py"]
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/pkg/a.py").read_text() == "pkg/a.py"
    with (tmp_path / "b.tar.gz").open("wb") as file:
        pack(source, file)
    assert (tmp_path / "b.tar.gz").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("/absolute/../../outside"),
        member("a/../../outside"),
        member("link", tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", tarfile.SYMTYPE, linkname="../../outside"),
        member("hard", tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("device", tarfile.CHRTYPE),
        member("disk", tarfile.BLKTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda bad: f"{bad.name}-{bad.linkname}",
)
def test_what_leaves_the_folder_or_is_no_file_is_refused(tmp_path, bad):
    archive = write(tmp_path / "a.tar.gz", (member("fine"), b"x"), (bad, b""))
    try:
        unpack(archive, tmp_path / "in" / "out")
    except UsageError:
        assert not (tmp_path / "in" / "out").exists()
    # An absolute name may also be taken as one inside: what counts is that nothing is written elsewhere.
    outside = {path.name for path in tmp_path.iterdir()} | {
        p.name for p in (tmp_path / "in").iterdir()
    }
    assert outside <= {"a.tar.gz", "in", "out"}


def test_a_link_to_write_through_is_refused(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    link = member("d", tarfile.SYMTYPE, linkname=str(target))
    archive = write(tmp_path / "a.tar.gz", (link, b""), (member("d/file"), b"x"))
    with pytest.raises(UsageError):
        unpack(archive, tmp_path / "out")
    assert not list(target.iterdir())


def test_a_file_with_two_names_is_unpacked_as_two_files(tmp_path):
    twin = member("b/twin", tarfile.LNKTYPE, linkname="a")
    archive = write(tmp_path / "a.tar.gz", (member("a"), b"same"), (twin, b""))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/b/twin").read_bytes() == b"same"
    assert (tmp_path / "out/a").stat().st_nlink == 1


def test_a_folder_that_is_said_to_be_a_link_to_itself_is_refused(tmp_path):
    for link in (
        member(".", tarfile.SYMTYPE, linkname="a"),
        member("a", tarfile.SYMTYPE, linkname="a"),
    ):
        archive = write(tmp_path / "a.tar.gz", (member("x"), b"x"), (link, b""))
        with contextlib.suppress(UsageError):
            unpack(archive, tmp_path / "out" / link.name)


def test_sizes_and_counts_are_limited(tmp_path):
    many = write(tmp_path / "many.tar.gz", *[(member(f"f{n}"), b"") for n in range(20)])
    with pytest.raises(UsageError, match="more than 10 files"):
        unpack(many, tmp_path / "a", most_files=10)
    large = write(tmp_path / "large.tar.gz", (member("zeros"), bytes(3 << 20)))
    with pytest.raises(UsageError, match="more than 1 MiB"):
        unpack(large, tmp_path / "b", most_bytes=1 << 20)
    assert not (tmp_path / "b").exists()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_archive_are_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("x")
    (folder / "a").write_bytes(data)
    with pytest.raises(UsageError):
        unpack(folder / "a", folder / "out")


names = st.text(st.sampled_from("ab/.\\é"), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    members=st.lists(
        st.tuples(
            names, st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE]), names
        ),
        max_size=6,
    )
)
def test_no_archive_writes_outside_its_folder(tmp_path_factory, members):
    folder = tmp_path_factory.mktemp("x")
    made = [
        (
            member(name, kind, linkname=link if kind == tarfile.SYMTYPE else ""),
            b"x" if kind == tarfile.REGTYPE else b"",
        )
        for name, kind, link in members
    ]
    archive = write(folder / "a", *made)
    inside = folder / "deep" / "er" / "out"
    with contextlib.suppress(UsageError):
        unpack(archive, inside)
    written = {path for path in folder.rglob("*") if inside not in path.parents}
    assert written <= {folder / "a", folder / "deep", folder / "deep/er", inside}
