"""Logprobs of datums under a policy that is not trained: the reference policy of a loss."""

from __future__ import annotations

from collections.abc import Sequence

from hud.engine.decoder import Decoder
from hud.engine.learn.local_trainer import default_pass_tokens
from hud.engine.learn.packed_pass import check, check_pictures, lay_out, places_of
from hud.engine.learn.pass_metrics import Measured
from hud.engine.learn.training_pass import pass_computer
from hud.learning.datums import Datum, Floats
from hud.learning.packing import pack


def logprobs_under(decoder: Decoder, datums: Sequence[Datum]) -> list[Floats]:
    """Return, for each datum, (T,) fp32 logprobs of its tokens at their temperatures; 0 if the mask is 0.

    The decoder needs no trainer. Raises `UsageError` for a datum that it cannot compute.
    """
    used = [number for number, datum in enumerate(datums) if datum.actions]
    check(datums, used)
    check_pictures(datums, used, decoder.picture_tokens)
    alone = any(datums[number].pictures for number in used)
    order = places_of(datums, used, share=decoder.shares_prefixes and not alone)
    computer, measured = pass_computer(decoder), Measured()
    for places in pack(order, default_pass_tokens(decoder), at_least=1):
        batch = lay_out(datums, places, decoder.device)
        measured.add(batch, {}, computer.logprobs(batch).logprobs)
    return measured.logprobs_of(datums)
