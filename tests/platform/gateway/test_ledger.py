"""The ledger's buffered rows are written, also where the interpreter ends before they are due."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from hud_platform.gateway import ledger as ledgers
from hud_platform.gateway.ledger import Ledger, Meter
from hud_platform.store import Store, tables

COLUMNS = {"team_id": "t", "route": "/v1/answers", "model": "tiny", "status": 200, "seconds": 0.1}


async def test_rows_are_written_after_the_loops_threads_have_ended(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(ledgers, "EVERY_SECONDS", 0)
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    loop.set_default_executor(threads)
    store = Store.open(tmp_path)
    ledger = Ledger(store)
    with caplog.at_level(logging.ERROR, "asyncio"):
        ledger.add(Meter(), **COLUMNS)
        await asyncio.sleep(0.05)
    assert caplog.records == []
    with store.begin() as connection:
        assert (
            connection.execute(sa.select(sa.func.count()).select_from(tables.requests)).scalar()
            == 1
        )
