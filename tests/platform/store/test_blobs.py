"""Blobs come back as they were put, whole or not at all, from a folder and from an S3-compatible store."""

import contextlib
import io
import os

import pytest

from hud.errors import NotFoundError, StoreError, UsageError
from hud_platform.store.blobs import Blobs

pytestmark = pytest.mark.sqlite  # Blobs are no rows of a database.
TEAM = "1" * 32


@pytest.fixture(scope="module")
def bucket():
    """The URL of a bucket of moto's server on loopback."""
    import boto3
    from moto.server import ThreadedMotoServer

    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**keys, "AWS_DEFAULT_REGION": "us-east-1"}.items():
            patch.setenv(name, value)
        server = ThreadedMotoServer("127.0.0.1", 0)
        server.start()
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="blobs")
        yield f"s3://blobs/some/prefix?endpoint_url={endpoint}"
        server.stop()


@pytest.fixture(params=["folder", "s3"])
def blobs(request, tmp_path):
    return Blobs(
        str(tmp_path / "blobs") if request.param == "folder" else request.getfixturevalue("bucket")
    )


@pytest.mark.parametrize("size", [0, 5, 7 << 20])
def test_what_was_put_comes_back(blobs, size):
    data = os.urandom(size)
    blobs.put(f"{TEAM}/a/{size}", data)
    blobs.put_file(f"{TEAM}/b/{size}", io.BytesIO(data))
    assert blobs.get(f"{TEAM}/a/{size}") == data
    with blobs.local(f"{TEAM}/b/{size}") as path:
        assert path.read_bytes() == data


def test_a_key_is_there_until_it_is_deleted(blobs):
    assert not blobs.exists(f"{TEAM}/c")
    blobs.put(f"{TEAM}/c", b"x")
    assert blobs.exists(f"{TEAM}/c")
    blobs.delete(f"{TEAM}/c")
    assert not blobs.exists(f"{TEAM}/c")
    blobs.delete(f"{TEAM}/c")


def test_what_is_not_there_is_named(blobs):
    with pytest.raises(NotFoundError, match=f"{TEAM}/none"):
        blobs.get(f"{TEAM}/none")
    with pytest.raises(NotFoundError, match=f"{TEAM}/none"), blobs.local(f"{TEAM}/none"):
        pass


class Breaking(io.RawIOBase):
    """A source that gives some megabytes and then fails, as an upload does whose client goes away."""

    def __init__(self, megabytes):
        self.left = megabytes

    def read(self, size=-1):
        if not self.left:
            raise ConnectionResetError("gone")
        self.left -= 1
        return b"x" * (1 << 20)


@pytest.mark.parametrize("megabytes", [1, 12])
def test_half_a_blob_is_none(blobs, megabytes):
    with pytest.raises(StoreError, match="gone"):
        blobs.put_file(f"{TEAM}/half/{megabytes}", Breaking(megabytes))
    assert not blobs.exists(f"{TEAM}/half/{megabytes}")


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "a\x00b", ".hidden", "a\n"]
)
def test_a_key_that_climbs_is_refused(blobs, key):
    with pytest.raises(UsageError, match="not a valid key"):
        blobs.put(key, b"x")


def test_a_store_that_can_be_used_passes_the_check(blobs):
    blobs.check()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"{tmp_path}/file is no folder"):
        Blobs(str(tmp_path / "file" / "blobs")).check()


def test_a_bucket_that_is_not_there_is_named(bucket):
    with pytest.raises(UsageError, match="s3://nobodys"):
        Blobs(bucket.replace("s3://blobs", "s3://nobodys")).check()


def test_an_option_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'colour'"):
        Blobs(f"{tmp_path}?colour=red")


@pytest.mark.slow
def test_the_endpoint_may_stand_in_the_environment(bucket, monkeypatch):
    place, _, endpoint = bucket.partition("?endpoint_url=")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with contextlib.closing(io.BytesIO(b"over the environment")) as source:
        Blobs(place).put_file(f"{TEAM}/env", source)
    assert Blobs(bucket).get(f"{TEAM}/env") == b"over the environment"
