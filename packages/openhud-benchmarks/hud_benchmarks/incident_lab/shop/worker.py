"""The worker: fulfils paid orders from the queue, one message after another."""

import json
import os
import threading
from typing import Any

from prometheus_client import Counter

from .frame import Frame

frame = Frame("worker")
QUEUE = os.environ["FULFILMENT_QUEUE"]
TAKEN = f"{QUEUE}:taken"
done = Counter("messages_done", "Messages that were fulfilled.", registry=frame.registry)


def boxes(message: dict[str, Any]) -> int:
    return max(1, 12 // int(message["parcels"]))


def fulfil(message: dict[str, Any]) -> None:
    count = boxes(message)
    with frame.database.connection() as connection:
        connection.execute(
            "UPDATE orders SET status = 'shipped' WHERE id = %s", (message["order"],)
        )
        connection.execute(
            "INSERT INTO shipments (order_id, carrier) VALUES (%s, %s)",
            (message["order"], message["carrier"].lower()),
        )
    frame.note("order fulfilled", order=message["order"], item=message["id"], boxes=count)


def work() -> None:
    # What was taken and not finished goes first: nothing is lost when the worker dies.
    while frame.cache.lmove(TAKEN, QUEUE, "RIGHT", "RIGHT"):
        pass
    while True:
        text = frame.cache.brpoplpush(QUEUE, TAKEN, timeout=1)
        if text is None:
            continue
        message = json.loads(text)
        fulfil(message)
        frame.cache.lrem(TAKEN, 1, str(text))
        done.inc()


def main() -> None:
    threading.Thread(target=frame.serve, daemon=True).start()
    try:
        work()
    except Exception as error:
        frame.log.critical("worker stops", exc_info=error)
        raise


if __name__ == "__main__":
    main()
