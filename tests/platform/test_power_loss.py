"""Every file of a HUD_HOME survives a power loss whole; one that is torn all the same is refused, or repaired, at the next start."""

import asyncio
import io
import os
import random
from contextlib import closing, suppress

import httpx
import pytest
from tests.platform.power_loss import PowerLoss

from hud import settings
from hud.benchmarks.baseline import baseline_file
from hud.client.archives import pack
from hud.dotenv import write_dotenv
from hud.errors import HudError, StoreError, UsageError
from hud.trace.recording.journal import Journal, encode_event, orphaned_journals, set_aside
from hud.train.recipe import follow, make_recipe
from hud_platform.access import Identity
from hud_platform.access.passes import KEY_BYTES, Passes
from hud_platform.access.secrets import Secrets
from hud_platform.application import create_app
from hud_platform.environments.registry import Environments
from hud_platform.models.checkpoint_files import Manifest, write_checkpoint
from hud_platform.models.registry import Registry
from hud_platform.process.config import PlatformConfig
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM

ADMIN = Identity(LOCAL_TEAM, frozenset({"admin"}))
ENV = """
from hud import Environment
env = Environment("shop")

@env.template()
async def buy(item: str = "pear"):
    yield item
    yield 1.0
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HUD_HOME", str(folder))
    return folder


def sign(home):
    Passes(home).make(ADMIN, 60)


def set_secret(home):
    Secrets(home, LOCAL_TEAM).set("OPENAI_API_KEY", "sk-1")
    Secrets(home, LOCAL_TEAM).set("OPENAI_API_KEY", "sk-2")


def save_settings(home):
    write_dotenv(home / ".env", {"HUD_SAMPLERS": "1"})
    write_dotenv(home / ".env", {"HUD_API_URL": "http://127.0.0.1:1"})


def put_blobs(home):
    with closing(Store.open(home)) as store:
        store.blobs.put(f"{LOCAL_TEAM}/attachments/a", b"a" * 70_000)


def create_model(home):
    with closing(Store.open(home)) as store:
        Registry(store, home, team=LOCAL_TEAM).create("Tiny", ["a b c"])


def save_checkpoint(home):
    def write(folder):
        (folder / "sampler").mkdir()
        (folder / "sampler" / "model.safetensors").write_bytes(b"weights" * 1000)

    folder = home / "models" / "a" / "step-1"
    write_checkpoint(folder, Manifest(id="a", model_id="b", step=1), write)


def record_baseline(home):
    for version in ("1", "2"):
        baseline_file.change(
            "sheetbench",
            lambda known, version=version: known.model_copy(update={"version": version}),
        )


def set_lines_aside(home):
    Journal(home / "journal").close()
    with pytest.warns(UserWarning, match="could not be stored"):
        set_aside(home / "journal", encode_event(b"J", "a", 0, b"{}"), [0])


def deploy(home):
    (home.parent / "source").mkdir()
    (home.parent / "source" / "env.py").write_text(ENV)

    async def build():
        app = create_app(PlatformConfig(home, keys=True))
        platform = app.state.parts
        _, secret = platform.keys.mint("test", LOCAL_TEAM, scopes=("admin",))
        async with (
            platform.running(),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app),
                base_url="http://platform",
                headers={"authorization": f"Bearer {secret}"},
            ) as api,
        ):
            begun = (await api.post("/v2/builds/upload-url")).json()
            archive = io.BytesIO()
            pack(home.parent / "source", archive)
            await api.put(
                begun["upload_url"], content=archive.getvalue(), headers={"authorization": ""}
            )
            body = {"source": "direct", "build_id": begun["build_id"], "name": "shop"}
            build = {**body, "environment_variables": {"COLOUR": "red"}}
            made = (await api.post("/v2/builds/trigger", json=build)).json()
            state = {"status": "IN_PROGRESS"}
            while state["status"] == "IN_PROGRESS":
                await asyncio.sleep(0.05)
                state = (await api.get(f"/v2/builds/{made['id']}/status")).json()
            assert state["status"] == "SUCCEEDED", state

    asyncio.run(build())


WRITERS = [
    sign,
    set_secret,
    save_settings,
    put_blobs,
    create_model,
    save_checkpoint,
    record_baseline,
    set_lines_aside,
    deploy,
]


@pytest.mark.parametrize("write", WRITERS)
def test_files_that_were_written_survive_a_power_loss(home, monkeypatch, write):
    power = PowerLoss(home, monkeypatch, seed=1)
    write(home)
    before = power.files()
    assert before
    assert power.strike() == []
    assert power.files() == before


def test_a_file_that_is_not_flushed_would_not(home, monkeypatch):
    power = PowerLoss(home, monkeypatch, seed=1)
    (home / "a").write_bytes(b"content")
    descriptor = os.open(home, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    (home / "b").write_bytes(b"content")
    assert power.strike() == ["a", "b"]
    assert (home / "a").stat().st_size < len(b"content")


@pytest.mark.parametrize("size", [0, 1, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_signing_key_that_is_not_whole_signs_nothing(home, size):
    (home / "signing.key").write_bytes(b"k" * size)
    with pytest.raises(StoreError, match=rf"signing.key is damaged: it has {size} bytes, not 32"):
        Passes(home)
    with pytest.raises(StoreError, match="signing.key is damaged"):
        create_app(PlatformConfig(home, keys=True))


def test_a_signing_key_of_zeros_signs_nothing(home):
    (home / "signing.key").write_bytes(bytes(KEY_BYTES))
    with pytest.raises(StoreError, match=r"signing.key is damaged: it has zeros alone"):
        Passes(home)


@pytest.mark.parametrize("name", ["signing.key", "baselines/sheetbench.json"])
@pytest.mark.parametrize("kind", ["folder", "lost link", "loop", "pipe"])
def test_what_stands_in_the_place_of_a_file_is_named(home, name, kind):
    path = home / name
    path.parent.mkdir(exist_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path if kind == "loop" else home / "lost")
    with pytest.raises(StoreError, match=rf"{path} (is no file|cannot be read|is a link)"):
        Passes(home).make(ADMIN, 60)
        baseline_file.baseline_file("sheetbench")


RECIPE = {"stages": [{"name": "first", "model": "tiny", "tasks": "tasks.py"}]}


def begin_recipe(home):
    recipe = make_recipe(RECIPE)
    path = home / "training" / f"recipe-{recipe.fingerprint}.json"
    path.parent.mkdir()
    path.write_text('{"first": {"run_id": "a"}}')


def start_again(home):
    """Start a server on a home, and use each kind of file in it."""
    settings.load()
    baseline_file.baseline_file("sheetbench")
    app = create_app(PlatformConfig(home, keys=True))
    with closing(app.state.parts) as platform:
        assert Passes(home).read(platform.passes.make(ADMIN, 60)) == ADMIN
        Environments(platform.store, LOCAL_TEAM).runnable("shop")
        Secrets(home, LOCAL_TEAM).get("OPENAI_API_KEY")
    asyncio.run(follow(make_recipe(RECIPE)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_home_with_a_torn_file_starts_or_names_the_file(home, seed):
    chance = random.Random(seed)
    for write in (sign, set_secret, save_settings, record_baseline, deploy, begin_recipe):
        write(home)
    (home / ".env").write_text("")
    files = [
        path
        for path in sorted(home.rglob("*"))
        if path.is_file() and not path.name.startswith("hud.db") and path.stat().st_size
    ]
    assert {"signing.key", "variables.json", "OPENAI_API_KEY"} < {path.name for path in files}
    for path in files:
        whole = path.read_bytes()
        os.truncate(path, chance.randrange(len(whole)))
        with suppress(HudError):
            start_again(home)
        path.write_bytes(whole)


def test_a_torn_journal_of_a_recipe_is_named(home):
    begin_recipe(home)
    (path,) = (home / "training").iterdir()
    os.truncate(path, 10)
    with pytest.raises(StoreError, match=r"recipe-\w+\.json is damaged"):
        asyncio.run(follow(make_recipe(RECIPE)))


@pytest.mark.parametrize("kind", ["bytes", "loop", "pipe"])
def test_settings_that_are_no_text_are_named(home, kind):
    path = home / ".env"
    if kind == "bytes":
        path.write_bytes(b"A=\xff\xfe")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        os.mkfifo(path)
    with pytest.raises(
        UsageError, match=r"\.env(:1: this is no text| cannot be read| is no regular file)"
    ):
        settings.load()


def test_a_virtual_environment_called_env_holds_no_settings(home, monkeypatch):
    (home / "project" / ".env").mkdir(parents=True)
    monkeypatch.chdir(home / "project")
    assert settings.load()


def replace(path, kind):
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(
            {"constant": b"\xff" * 32, "pattern": b"abcd" * 8, "open": os.urandom(32)}[kind]
        )
        path.chmod(0o644 if kind == "open" else 0o600)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["constant", "pattern", "open", "folder", "loop", "pipe"])
def test_a_signing_key_that_others_may_know_signs_nothing(home, kind):
    replace(home / "signing.key", kind)
    with pytest.raises(StoreError, match=r"signing\.key (is|cannot)"):
        Passes(home)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["constant", "open", "folder", "loop", "pipe"])
def test_a_secret_that_is_none_is_named(home, kind):
    set_secret(home)
    replace(home / "secrets" / LOCAL_TEAM / "OPENAI_API_KEY", kind)
    with pytest.raises(StoreError, match="OPENAI_API_KEY (is|cannot)"):
        Secrets(home, LOCAL_TEAM).get("OPENAI_API_KEY")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
@pytest.mark.parametrize("name", ["hud.db", "hud.db-wal", "hud.db-shm", "hud.db-journal"])
def test_a_file_of_the_database_that_is_none_is_named(home, name, kind):
    """SQLite waited for a pipe without end, and a folder was a full disk."""
    Store.open(home).close()
    replace(home / name, kind)
    with pytest.raises(StoreError, match=rf"{name} (is no file|cannot be read)"):
        Store.open(home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_of_the_machine_signs_nothing(home):
    sign(home)
    set_secret(home)
    for path in (home / "signing.key", home / "secrets" / LOCAL_TEAM / "OPENAI_API_KEY"):
        os.chown(path, 1234, 1234)
    with pytest.raises(StoreError, match=r"signing\.key belongs to another user"):
        Passes(home)
    with pytest.raises(StoreError, match=r"OPENAI_API_KEY belongs to another user"):
        Secrets(home, LOCAL_TEAM).get("OPENAI_API_KEY")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["folder", "loop", "pipe"])
def test_a_journal_that_is_none_is_named(home, kind):
    """A pipe among the journals held every command."""
    (home / "journal").mkdir()
    replace(home / "journal" / "a.journal", kind)
    with pytest.raises(StoreError, match=r"a\.journal (is no file|cannot be read)"):
        list(orphaned_journals(home / "journal"))
