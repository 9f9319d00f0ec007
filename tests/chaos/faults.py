"""Faults: what may happen to a server, its processes, its disk and database, its machines, users and providers."""

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress

import httpx
import psutil
from tests.chaos.scene import MODEL, Scene
from tests.chaos.wall_clock import COMPILER

Fault = Callable[[Scene, random.Random], None]
"""Strikes, and returns when the fault is over; raises `AssertionError` where something answers as it must not."""


def kill_server(scene: Scene, chance: random.Random) -> None:
    scene.server.kill()
    try:
        _end_orphans(scene)
    finally:
        scene.restart()


def kill_engine(scene: Scene, chance: random.Random) -> None:
    _kill(scene.engines())


def kill_worker(scene: Scene, chance: random.Random) -> None:
    _kill(scene.workers())


def lose_machine(scene: Scene, chance: random.Random) -> None:
    if scene.node is not None and scene.node.process.poll() is None:
        scene.node.kill()
    scene.join()


def preempt_machine(scene: Scene, chance: random.Random) -> None:
    """SIGTERM, and five seconds later the end."""
    assert scene.node is not None
    if scene.node.process.poll() is None:
        scene.node.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            scene.node.process.wait(5)
        if scene.node.process.poll() is None:
            scene.node.kill()
    scene.join()


def kill_trainer(scene: Scene, chance: random.Random) -> None:
    _kill(list(scene.trainers))


def kill_evaluation(scene: Scene, chance: random.Random) -> None:
    for process in list(scene.evaluations):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def tear_journal(scene: Scene, chance: random.Random) -> None:
    """An evaluation dies in the middle of a line of its journal."""
    killed = list(scene.evaluations)
    kill_evaluation(scene, chance)
    for process in killed:
        with suppress(psutil.Error):
            process.wait(10)
        for journal in scene.client_home.glob(f"journal/**/{process.pid}-*.journal"):
            with suppress(OSError), journal.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(b"0badc0de\tS\t" + b"a" * chance.randint(0, 200))


def stop_server(scene: Scene, chance: random.Random) -> None:
    assert scene.server.process is not None
    _suspend([psutil.Process(scene.server.process.pid)], chance.uniform(1.0, 6.0))


def stop_engine(scene: Scene, chance: random.Random) -> None:
    _suspend(scene.engines(), chance.uniform(1.0, 6.0))


def stop_machine(scene: Scene, chance: random.Random) -> None:
    """Longer than a lease: what it brings afterwards is no longer awaited."""
    assert scene.node is not None
    if scene.node.process.poll() is None:
        root = psutil.Process(scene.node.process.pid)
        _suspend(_with_children([root]), chance.uniform(4.0, 12.0))


def stop_trainer(scene: Scene, chance: random.Random) -> None:
    _suspend(list(scene.trainers), chance.uniform(1.0, 6.0))


def fill_disk(scene: Scene, chance: random.Random) -> None:
    """No file of the server and its processes grows for some seconds."""
    assert scene.server.process is not None
    root = psutil.Process(scene.server.process.pid)
    with _limited(lambda: [root, *root.children(recursive=True)]):
        time.sleep(chance.uniform(1.0, 4.0))


def fill_disk_of_user(scene: Scene, chance: random.Random) -> None:
    with _limited(lambda: _with_children([*scene.trainers, *scene.evaluations])):
        time.sleep(chance.uniform(0.5, 2.0))


def lock_database(scene: Scene, chance: random.Random) -> None:
    """Another program holds what the server writes for some seconds."""
    seconds = chance.uniform(1.0, 6.0)
    if scene.database is not None:
        import psycopg

        with psycopg.connect(_libpq(scene.database)) as at:
            at.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            time.sleep(seconds)
        return
    with closing(sqlite3.connect(scene.home / "hud.db", timeout=30, isolation_level=None)) as at:
        at.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        at.execute("ROLLBACK")


def end_database_connections(scene: Scene, chance: random.Random) -> None:
    import psycopg

    assert scene.database is not None
    with psycopg.connect(_libpq(scene.database), autocommit=True) as at:
        at.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE usename = current_user AND pid <> pg_backend_pid()"
        )


def crash_database(scene: Scene, chance: random.Random) -> None:
    """A process of PostgreSQL is killed: all end, and it recovers from its log."""
    import psycopg

    assert scene.database is not None
    with psycopg.connect(_libpq(scene.database), autocommit=True) as at:
        row = at.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        with suppress(psycopg.Error):
            os.kill(row[0], signal.SIGKILL)
            at.execute("SELECT 1")
    time.sleep(1.0)


def damage_checkpoint(scene: Scene, chance: random.Random) -> None:
    """A checkpoint that is not the head is damaged, asked for, and mended: the answer says so, and the model goes on."""
    found = sorted(scene.home.glob("models/*/checkpoints/step-*/sampler/model.safetensors"))
    if not found:
        return
    file = chance.choice(found)
    try:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    except FileNotFoundError:  # Its training pruned it.
        return
    try:
        time.sleep(0.5)
        _ask(scene, MODEL)
    finally:
        if file.parent.exists():
            file.write_bytes(content)


def start_on_read_only_home(scene: Scene, chance: random.Random) -> None:
    """The server ends, and is started where it may write nothing: one sentence, and no traceback."""
    if shutil.which("bwrap") is None:
        return
    scene.server.stop()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
    database = [] if scene.database is None else ["--database", scene.database]
    read_only = ("bwrap", "--dev-bind", "/", "/", "--ro-bind", str(scene.home), str(scene.home))
    command = ("-m", "hud.cli.main", "up", "--port", str(scene.server.port), *database)
    done = subprocess.run(
        [*read_only, sys.executable, *command],
        env={**kept, "HUD_HOME": str(scene.home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    scene.restart()
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2), (
        f"On a read-only home hud up ends with {done.returncode}: {said}"
    )
    assert "Traceback" not in said, f"On a read-only home hud up prints {said[-800:]}"


def upset_provider(mood: str) -> Fault:
    def strike(scene: Scene, chance: random.Random) -> None:
        scene.provider.mood = mood
        time.sleep(chance.uniform(1.0, 4.0))
        scene.provider.mood = "well"

    return strike


def set_clock(whose: str) -> Fault:
    """Set a wall clock forwards or backwards, by a minute to a day, and after some seconds right again."""

    def strike(scene: Scene, chance: random.Random) -> None:
        clock = scene.clocks[whose]
        clock.set(chance.choice((-1, 1)) * chance.choice((60, 3_600, 86_400)))
        try:
            time.sleep(chance.uniform(1.0, 10.0))
        finally:
            clock.set(0)

    return strike


FAULTS: dict[str, Fault] = {
    "the server is killed": kill_server,
    "an engine is killed": kill_engine,
    "the server's worker is killed": kill_worker,
    "a machine is lost": lose_machine,
    "a machine is preempted": preempt_machine,
    "a trainer is killed": kill_trainer,
    "an evaluation is killed": kill_evaluation,
    "a journal is torn": tear_journal,
    "the server stands still": stop_server,
    "an engine stands still": stop_engine,
    "a machine stands still": stop_machine,
    "a trainer stands still": stop_trainer,
    "the server's disk is full": fill_disk,
    "a user's disk is full": fill_disk_of_user,
    "the database is locked": lock_database,
    "a checkpoint is damaged": damage_checkpoint,
    "the home is read-only": start_on_read_only_home,
    "the provider hangs": upset_provider("hangs"),
    "the provider drips": upset_provider("drips"),
    "the provider breaks off": upset_provider("breaks off"),
    "the provider is broken": upset_provider("is broken"),
}
if COMPILER is not None:
    FAULTS |= {
        "the server's clock jumps": set_clock("server"),
        "a machine's clock jumps": set_clock("machine"),
        "a user's clock jumps": set_clock("user"),
    }
ON_POSTGRESQL: dict[str, Fault] = {
    "the database ends its connections": end_database_connections,
    "the database crashes": crash_database,
}


def order(
    chance: random.Random, count: int, *, postgresql: bool, only: Collection[str] = ()
) -> Iterator[tuple[str, Fault]]:
    """Yield `count` faults: every kind before any comes twice; with `only`, those alone."""
    known = {**FAULTS, **(ON_POSTGRESQL if postgresql else {})}
    if only:
        known = {name: known[name] for name in only}
    left: list[str] = []
    for _ in range(count):
        if not left:
            left = list(known)
            chance.shuffle(left)
        name = left.pop()
        yield name, known[name]


def _ask(scene: Scene, model: str) -> None:
    body = {
        "model": model,
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Say a word."}],
    }
    with suppress(httpx.TransportError), scene.server.client() as api:
        answer = api.post("/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code in (200, 409, 429, 502, 503, 504), answer.text


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _end_orphans(scene: Scene) -> None:
    """Processes of a killed server end by themselves; raises where one goes on for 30 seconds."""
    until = time.monotonic() + 30.0
    while left := [one for one in psutil.process_iter(["environ"]) if _is_of(one, scene)]:
        assert time.monotonic() < until, f"A killed server leaves {[one.cmdline() for one in left]}"
        time.sleep(0.2)


def _is_of(process: psutil.Process, scene: Scene) -> bool:
    environment = process.info["environ"] or {}
    return environment.get("HUD_HOME") == str(scene.home) and process.pid != os.getpid()


def _suspend(processes: list[psutil.Process], seconds: float) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        time.sleep(seconds)
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def _limited(processes: Callable[[], list[psutil.Process]]) -> Iterator[None]:
    """Let no file of these processes grow during the block; those that they start meanwhile have the limit, too."""
    _limit(processes(), 0)
    try:
        yield
    finally:
        _limit(processes(), resource.RLIM_INFINITY)


def _limit(processes: list[psutil.Process], most: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
            process.rlimit(psutil.RLIMIT_FSIZE, (most, hard))


def _with_children(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            found += [root, *root.children(recursive=True)]
    return found


def _libpq(url: str) -> str:
    import sqlalchemy as sa

    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
