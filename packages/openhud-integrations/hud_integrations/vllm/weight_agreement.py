"""Agreement of several servers' weights, by the checksums that vLLM computes of every tensor (`Server.checksums`).

Servers that are set up alike and loaded one folder have equal checksums. They are not those of a folder, because vLLM joins,
cuts and casts the tensors of one: the comparison with the trainer is `Publication.mistake`.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

from hud.errors import HudError
from hud_integrations.vllm.publication import Publication, name_of
from hud_integrations.vllm.replica import Replica

log = logging.getLogger("hud.vllm")

Checksums = Mapping[str, str]
"""For each tensor of each rank (`dp0:pp0:pcp0:tp0:model.norm.weight`), the SHA-256 of its bytes in hexadecimal."""

_EMPTY = ("", hashlib.sha256(b"").hexdigest())
"""Checksums of tensors without bytes: servers on a CPU pack the weights of layers, and empty the tensors they came from."""


@dataclass(frozen=True)
class _Reading:
    """The checksums of a server's weights since it loaded them; empty where it has none."""

    publication: Publication
    epoch: int
    checksums: Checksums
    complete: bool
    """False: the server read some tensors as empty, which says nothing of the weights."""

    def holds(self, replica: Replica) -> bool:
        """Return whether the server still samples with these weights, without a loss in between."""
        return self.publication is replica.has and self.epoch == replica.epoch


class WeightAgreement:
    """Comparison of the full weights of a pool's servers with each other."""

    def __init__(self) -> None:
        self._readings: WeakKeyDictionary[Replica, _Reading] = WeakKeyDictionary()
        self._loaded_again: WeakKeyDictionary[Replica, Publication] = WeakKeyDictionary()
        self._apart: WeakSet[Replica] = WeakSet()
        """Servers that differ after they loaded the same weights again: they compute in other number formats."""

    async def read(self, replica: Replica) -> None:
        """Read a server's checksums, once for each load of full weights; warn where it changed nothing."""
        async with replica.changing:
            publication, earlier = replica.has, self._readings.get(replica)
            if publication is None or publication.adapter is not None:
                return
            if replica in self._apart or (earlier is not None and earlier.holds(replica)):
                return
            checksums = await _checksums(replica)
            read = {name: value for name, value in checksums.items() if value not in _EMPTY}
            reading = _Reading(publication, replica.epoch, read, len(read) == len(checksums))
        self._readings[replica] = reading
        if earlier is not None and reading.checksums and reading.complete:
            _warn_of_same(replica, earlier, reading)

    def problems(
        self, replicas: Iterable[Replica], current: Publication | None
    ) -> dict[Replica, str]:
        """Return the servers that must load the current weights again, and the reason for each.

        A server is named once for each publication. One that differs again afterwards is not compared any more.
        """
        loaded = [
            replica for replica in replicas if replica.has is current and replica not in self._apart
        ]
        read = {
            replica: reading.checksums
            for replica in loaded
            if (reading := self._readings.get(replica)) is not None and reading.holds(replica)
        }
        held = {replica: checksums for replica, checksums in read.items() if checksums}
        # Of two that differ, those to come may say which is wrong.
        differing = disagreeing(held, all_read=len(read) == len(loaded))
        reasons = {}
        for replica, tensors in differing.items():
            assert current is not None
            difference = f"{tensors[0]!r} and {len(tensors) - 1} other tensors"
            if self._loaded_again.get(replica) is current:
                self._apart.add(replica)
                log.warning(
                    "The vLLM server %s loaded %r again and still has other bytes than the others in %s: another dtype, GPU or "
                    "version of vLLM? Its checksums are not compared any more.",
                    replica.server.url,
                    name_of(current.version),
                    difference,
                )
                continue
            self._loaded_again[replica] = current
            reasons[replica] = (
                f"The vLLM server {replica.server.url} has other weights than the other servers with "
                f"{name_of(current.version)!r}, in {difference}: it loads them again."
            )
        return reasons


async def _checksums(replica: Replica) -> Checksums:
    try:
        return await replica.server.checksums() or {}
    except HudError as error:
        # Its health is checked apart; weights without checksums have passed the probes.
        log.warning("%s Its weights are not compared with other servers'.", error)
        return {}


def _warn_of_same(replica: Replica, earlier: _Reading, reading: _Reading) -> None:
    versions = name_of(earlier.publication.version), name_of(reading.publication.version)
    if versions[0] != versions[1] and earlier.checksums == reading.checksums:
        log.warning(
            "The weights %r of the vLLM server %s are those of %r, byte for byte: either the step changed less than its number "
            "format keeps, or the server loaded old files.",
            versions[1],
            replica.server.url,
            versions[0],
        )


def disagreeing(
    held: Mapping[Replica, Checksums], *, all_read: bool = True
) -> dict[Replica, list[str]]:
    """Return the servers whose weights differ from those of most, and the names of their differing tensors.

    Only servers with the same tensors on the same ranks are compared. Without a majority all of them are returned, or none
    while some were not read.
    """
    alike: defaultdict[frozenset[str], dict[Replica, Checksums]] = defaultdict(dict)
    for replica, checksums in held.items():
        alike[frozenset(checksums)][replica] = checksums
    differing: dict[Replica, list[str]] = {}
    for names, group in alike.items():
        kinds = Counter(frozenset(checksums.items()) for checksums in group.values())
        (most, count), *_ = kinds.most_common()
        majority = count * 2 > len(group)
        if not majority and not all_read:
            continue
        against = [dict(most)] if majority else [dict(kind) for kind in kinds]
        for replica, checksums in group.items():
            tensors = [
                name for name in names if any(other[name] != checksums[name] for other in against)
            ]
            if tensors:
                differing[replica] = sorted(tensors)
    return differing
