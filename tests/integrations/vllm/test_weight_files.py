"""Weights reach nodes that share no disk with the trainer: changed bytes alone, whole or not at all, and again after a loss."""

import asyncio
import json
import shutil

import aiohttp
import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny_policy import tiny_folder
from tests.engine.waiting import until
from tests.integrations.vllm.test_vllm_sampling import LONG, PROMPT, trained_logprobs
from tests.integrations.vllm.vllm_policy import change, vllm_policy
from tests.integrations.vllm.vllm_stand_in import StandIn
from tests.integrations.vllm.weight_receiver import RunningReceiver

from hud.cli.main import run
from hud.engine.lora import LoraConfig
from hud.errors import InfrastructureFault, UsageError
from hud_integrations.vllm.weight_files.chunk import CHUNK_BYTES, decode, encode
from hud_integrations.vllm.weight_files.folder import WeightFolder, entry_of
from hud_integrations.vllm.weight_files.sender import Node, Version

MODEL = "hud-test"
SIZE = 3 * CHUNK_BYTES // 2


@pytest.fixture
def receiver(tmp_path):
    with RunningReceiver(tmp_path / "node") as running:
        yield running


@pytest.fixture
async def node(receiver):
    async with aiohttp.ClientSession() as session:
        yield Node(receiver.url, session, None)


def weights(tmp_path, name, *, seed=0, changed=0):
    """Write a folder of weights of two chunks; `changed` bytes differ between seeds."""
    folder = tmp_path / "trainer" / name
    folder.mkdir(parents=True)
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    places = np.random.default_rng(seed).choice(SIZE, changed, replace=False)
    content[places] ^= 1
    (folder / "model.safetensors").write_bytes(content.tobytes())
    (folder / "config.json").write_text("{}")
    return WeightFolder(name, folder)


def same_files(folder, other):
    names = [path.name for path in sorted(folder.iterdir())]
    return all(entry_of(folder / name) == entry_of(other / name) for name in names)


# -- chunks -----------------------------------------------------------------------------------------


@given(st.binary(max_size=2000), st.binary(max_size=2000) | st.none())
def test_a_chunk_is_what_its_encoding_decodes_to(chunk, base):
    encoding, content = encode(chunk, base)
    assert decode(encoding, content, len(chunk), base) == chunk
    assert len(content) <= len(chunk)


@given(
    st.sampled_from(["same", "changes", "plain"]),
    st.binary(max_size=99),
    st.integers(0, 99),
    st.binary() | st.none(),
)
def test_any_content_is_a_chunk_of_its_size_or_refused(encoding, content, size, base):
    try:
        chunk = decode(encoding, content, size, base)
    except UsageError:
        return
    assert len(chunk) == size


def test_a_changed_byte_takes_little_more_than_a_byte():
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, 1 << 20, np.uint8)
    places = rng.choice(len(base), len(base) // 50, replace=False)
    chunk = base.copy()
    chunk[places] ^= rng.choice(np.array([1, 1, 1, 1, 3, 3, 7], np.uint8), len(places))
    encoding, content = encode(chunk.tobytes(), base.tobytes())
    assert encoding == "changes"
    assert len(content) < 1.4 * len(places)


# -- one node ---------------------------------------------------------------------------------------


async def test_a_version_arrives_whole_and_then_only_its_changes(node, tmp_path):
    first = weights(tmp_path, "one")
    second = weights(tmp_path, "two", seed=1, changed=2000)
    placed = await node.place(Version(MODEL, first))
    assert placed.sent_bytes == placed.total_bytes == SIZE + 2
    assert same_files(first.path, tmp_path / "node" / MODEL / "one")
    changed = await node.place(Version(MODEL, second, (first,)))
    assert same_files(second.path, tmp_path / "node" / MODEL / "two")
    assert changed.sent_bytes < SIZE / 100
    assert changed.folder == str(tmp_path / "node" / MODEL / "two")


async def test_a_version_that_is_there_is_not_sent_again(node, tmp_path):
    version = Version(MODEL, weights(tmp_path, "one"))
    first = await node.place(version)
    again = await node.place(version)
    assert (again.folder, again.sent_bytes) == (first.folder, 0)


async def test_servers_of_one_node_get_a_version_once(node, tmp_path):
    version = Version(MODEL, weights(tmp_path, "one"))
    placed = await asyncio.gather(*(node.place(version) for _ in range(3)))
    assert sorted(one.sent_bytes for one in placed) == [0, 0, SIZE + 2]


async def test_files_that_the_servers_loaded_at_their_start_are_not_sent(tmp_path):
    first = weights(tmp_path, "one")
    served = tmp_path / "served"
    shutil.copytree(first.path, served)
    with RunningReceiver(tmp_path / "node", served=served) as receiver:
        async with aiohttp.ClientSession() as session:
            placed = await Node(receiver.url, session, None).place(Version(MODEL, first))
    assert placed.sent_bytes == 0
    assert same_files(first.path, tmp_path / "node" / MODEL / "one")


async def test_a_node_keeps_the_two_newest_versions(node, tmp_path):
    earlier = ()
    for number, name in enumerate(("one", "two", "three")):
        folder = weights(tmp_path, name, seed=number, changed=10)
        await node.place(Version(MODEL, folder, earlier))
        earlier = (folder,)
    assert sorted(path.name for path in (tmp_path / "node" / MODEL).iterdir()) == ["three", "two"]


async def test_a_node_that_lost_versions_gets_the_newest_whole(node, receiver, tmp_path):
    first, second = weights(tmp_path, "one"), weights(tmp_path, "two", seed=1, changed=9)
    await node.place(Version(MODEL, first))
    receiver.stop()
    shutil.rmtree(tmp_path / "node" / MODEL / "one")
    with pytest.raises(InfrastructureFault, match="does not answer"):
        await node.place(Version(MODEL, second, (first,)))
    receiver.start()
    placed = await node.place(Version(MODEL, second, (first,)))
    assert placed.sent_bytes == SIZE + 2
    assert same_files(second.path, tmp_path / "node" / MODEL / "two")


async def test_a_restarted_receiver_goes_on_from_the_version_on_its_disk(node, receiver, tmp_path):
    first, second = weights(tmp_path, "one"), weights(tmp_path, "two", seed=1, changed=9)
    await node.place(Version(MODEL, first))
    receiver.stop()
    receiver.start()
    assert (await node.place(Version(MODEL, second, (first,)))).sent_bytes < SIZE / 100


async def test_a_base_that_was_changed_since_is_no_base(node, tmp_path):
    first, second = weights(tmp_path, "one"), weights(tmp_path, "two", seed=1, changed=9)
    await node.place(Version(MODEL, first))
    other = weights(tmp_path / "other", "one", seed=7, changed=9)
    placed = await node.place(Version(MODEL, second, (other,)))
    assert placed.sent_bytes == SIZE  # The other file is the same.
    assert same_files(second.path, tmp_path / "node" / MODEL / "two")


# -- what a receiver refuses ------------------------------------------------------------------------


async def test_without_the_key_nothing_is_listed_or_written(tmp_path):
    version = Version(MODEL, weights(tmp_path, "one"))
    with RunningReceiver(tmp_path / "node", key="right") as receiver:
        async with aiohttp.ClientSession() as session:
            for key in (None, "wrong", "right " * 9):
                with pytest.raises(UsageError, match="401: The receiver of weights needs its key"):
                    await Node(receiver.url, session, key).place(version)
            assert (await Node(receiver.url, session, "right").place(version)).sent_bytes
    assert [path.name for path in (tmp_path / "node").iterdir()] == [MODEL]


@pytest.mark.parametrize("name", ["..", ".hidden", "a%2Fb", "%2e%2e", "a%00b"])
def test_names_that_leave_their_folder_are_refused(receiver, name, tmp_path):
    digest = "0" * 64
    for path in (f"{name}/v/f", f"m/{name}/f", f"m/v/{name}"):
        url = f"{receiver.url}/weights/{path}?offset=0&size=0&sha256={digest}"
        assert httpx.put(url).status_code in (404, 405, 422)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_chunk_with_another_digest_is_refused(receiver):
    url = f"{receiver.url}/weights/m/v/f?offset=0&size=1&sha256={'0' * 64}"
    answer = httpx.put(url, content=b"x")
    assert answer.status_code == 400
    assert "another SHA-256: send it again" in answer.json()["detail"]


def test_a_chunk_that_is_too_long_is_refused(receiver):
    url = f"{receiver.url}/weights/m/v/f?offset=0&size=1&sha256={'0' * 64}"
    assert httpx.put(url, content=bytes(CHUNK_BYTES + 1)).status_code == 400


def test_a_version_with_a_missing_or_different_file_never_appears(receiver, tmp_path):
    where = f"{receiver.url}/weights/m/v"
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    manifest = {"files": {"f": {"size": 1, "sha256": "0" * 64}}}
    answer = httpx.post(where, json=manifest)
    assert (answer.status_code, answer.json()["detail"]) == (400, "f was not sent.")
    httpx.put(f"{where}/f?offset=0&size=0&sha256={empty}")
    answer = httpx.post(where, json=manifest)
    assert "f has another SHA-256 than its manifest" in answer.json()["detail"]
    assert httpx.get(f"{receiver.url}/weights/m").json()["versions"] == {}
    assert not (tmp_path / "node" / "m" / "v").exists()


async def test_a_server_that_is_no_receiver_is_said_to_be_none(tmp_path):
    with StandIn(tiny_folder()) as server:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(UsageError, match="404|no receiver of weights"):
                await Node(server.url, session, None).place(
                    Version(MODEL, weights(tmp_path, "one"))
                )


def test_the_command_needs_a_key_where_others_reach_it(tmp_path, capsys):
    assert run(["fleet", "receive", str(tmp_path), "--host", "0.0.0.0"]) == 2
    assert "name its key with --key-env" in capsys.readouterr().err
    assert run(["fleet", "receive", str(tmp_path), "--key-env", "NO_KEY"]) == 2
    assert "NO_KEY is not set" in capsys.readouterr().err


# -- two nodes --------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path):
    """Two nodes on loopback, each with a server and a receiver; the trainer's folder is none of theirs."""
    with (
        RunningReceiver(tmp_path / "node-1") as first,
        RunningReceiver(tmp_path / "node-2", host="127.0.0.2", port=first.port) as second,
        StandIn(tiny_folder()) as near,
        StandIn(tiny_folder(), host="127.0.0.2") as far,
    ):
        yield [near, far], [first, second]


async def sampled(policy, version):
    """Sample on all servers; every logprob is that of the trainer's weights."""
    turns = await asyncio.gather(*(policy.sample([n, *PROMPT], LONG) for n in range(4)))
    for number, turn in enumerate(turns):
        assert turn.version == version
        expected = trained_logprobs(policy, [number, *PROMPT], turn)
        np.testing.assert_allclose(turn.logprobs, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4)], ids=["all weights", "adapter"])
async def test_both_nodes_sample_with_every_step(nodes, tmp_path, lora):
    servers, receivers = nodes
    port = receivers[0].port
    policy = await asyncio.to_thread(vllm_policy, servers, tmp_path, lora=lora, receiver_port=port)
    for step in ("one", "two"):
        await asyncio.to_thread(change, policy, step)
        await sampled(policy, step)
    for place in ("node-1", "node-2"):
        manifest = json.loads((tmp_path / place / MODEL / "two" / ".manifest.json").read_text())
        for name, entry in manifest["files"].items():
            assert entry_of(tmp_path / "published" / "two" / name).sha256 == entry["sha256"]
    await asyncio.to_thread(policy.close)


async def test_a_node_that_was_lost_for_a_step_catches_up(nodes, tmp_path):
    servers, receivers = nodes
    policy = await asyncio.to_thread(
        vllm_policy, servers, tmp_path, receiver_port=receivers[0].port
    )
    await asyncio.to_thread(change, policy, "one")
    receivers[1].stop()
    servers[1].kill()
    await asyncio.to_thread(change, policy, "two")
    await sampled(policy, "two")
    assert not (tmp_path / "node-2" / MODEL / "two").exists()
    servers[1].start()
    receivers[1].start()
    pool = policy._samplers._pool
    await until(lambda: all(replica.problem is None for replica in pool.replicas))
    await sampled(policy, "two")
    assert servers[1].requests
    assert same_files(tmp_path / "published" / "two", tmp_path / "node-2" / MODEL / "two")
    await asyncio.to_thread(policy.close)


async def test_turns_go_on_while_files_are_sent(nodes, tmp_path):
    servers, receivers = nodes
    policy = await asyncio.to_thread(
        vllm_policy, servers, tmp_path, receiver_port=receivers[0].port
    )
    for server in servers:
        server.hold_at(10)
    old = asyncio.create_task(policy.sample(PROMPT, LONG))
    await until(lambda: any(server.sequences for server in servers))
    step = asyncio.create_task(asyncio.to_thread(change, policy, "one"))
    await until(lambda: (tmp_path / "node-2" / MODEL / "one").exists())
    assert not old.done()
    for server in servers:
        server.hold_at(None)
    assert (await old).version is None
    await step
    await sampled(policy, "one")
    await asyncio.to_thread(policy.close)
