"""The child of a `SamplingProcess`: `python -m hud_integrations.tinker.sampling_worker`.

Messages are `(sampler, pickled client)`, `(sampler, None)` where it is no longer used,
`(request, sampler, prompt, number of samples, parameters)`, and None as the last; answers `(request, Sampled or an error's text)`.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tinker import types

from hud.processes.connected_child import connection_to_parent
from hud_integrations.tinker.sampling_process import Sampled, SampledSequence


def serve(connection: Connection) -> None:
    """Send requests until the parent closes, or dies."""
    gc.freeze()  # A collection of all that was imported takes a tenth of a second.
    connection.send(None)
    samplers: dict[int, Any] = {}
    sending = threading.Lock()

    def answer(number: int) -> Callable[[Future[Any]], None]:
        def end(done: Future[Any]) -> None:
            with sending, suppress(OSError):
                connection.send((number, _outcome(done)))

        return end

    while message := connection.recv():
        if len(message) == 2:
            sampler, pickled = message
            if pickled is None:
                samplers.pop(sampler, None)
            else:
                samplers[sampler] = pickle.loads(pickled)
            continue
        number, sampler, prompt, count, params = message
        request = samplers[sampler].sample(types.ModelInput.from_ints(prompt), count, params)
        request.future().add_done_callback(answer(number))


def _outcome(done: Future[Any]) -> Sampled | str:
    try:
        response = done.result()
    except BaseException as error:  # A CancelledError is none of Exception.
        return f"{type(error).__name__}: {error}"
    sequences = [
        SampledSequence(list(sequence.tokens), list(sequence.logprobs), sequence.stop_reason)
        for sequence in response.sequences
    ]
    return Sampled(sequences, response.prompt_cache_hit_tokens)


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()  # Tinker's client then takes a tenth less processor time.
    with suppress(EOFError):
        serve(connection_to_parent())
    os._exit(0)  # Without waiting for the client's threads.
