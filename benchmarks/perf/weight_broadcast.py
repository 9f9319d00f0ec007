"""A weight broadcast through every path, for growing models: a folder, an adapter, vLLM's weight transfer.

Folder and adapter are timed on this machine: what the trainer writes after a step, and what a sampler then loads into weights of its
own, against plain writes and reads of as many bytes on the same disk, by turns. The files are not flushed, so both sides see the page
cache as far as memory allows; the disk's own rate, flushed, and the memory's are printed beside them. Sizes double until a model does
not fit four times into free memory, or twice on the disk, or is larger than --most.

With --servers (running vLLM servers of the model in --model; vLLM installed here, too) the folder and the transfer are timed up to the
servers' first probe: pause, weights, resume. Without them that path is left out, and said so.

python benchmarks/perf/weight_broadcast.py [--most GIB] [--folder FOLDER] [--servers URL --servers URL --model FOLDER [--key-env NAME]]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import torch
from measure import by_turns, seconds
from records import report
from sizes import size

from hud.engine.config import DecoderConfig
from hud.engine.lora import LoraConfig, attach, load_adapter, save_adapter
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.pretrained import load_decoder, load_weights, save_decoder
from hud_integrations.vllm.publication import Publisher
from hud_integrations.vllm.sampler import VllmSampler
from hud_integrations.vllm.server_settings import Servers
from hud_integrations.vllm.weight_transfer import Connect, nccl_engine

ROUNDS = size(3, 1)
GIGA = 1e9
LORA = LoraConfig(rank=32)
SHAPE = DecoderConfig(
    model_type="qwen3",
    vocab_size=32_768,
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=1,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    max_position_embeddings=2048,
    dtype="bfloat16",
)
"""Qwen3-1.7B's layers; about 0.1 GB each in bf16, and 0.13 GB of embeddings."""


def models(most: float, folder: Path) -> Iterator[ReferenceDecoder]:
    """Yield decoders of 1, 3, 7, 15, ... layers while they fit."""
    layers = 1
    while True:
        config = replace(SHAPE, num_hidden_layers=layers)
        with torch.device("meta"):
            size = bytes_of(ReferenceDecoder(config))
        room = min(most, psutil.virtual_memory().available / 4, shutil.disk_usage(folder).free / 2)
        if layers > 1 and size > room:
            return
        yield filled(config)
        layers = 2 * layers + 1


def filled(config: DecoderConfig) -> ReferenceDecoder:
    """Return a decoder in bf16 whose weights are all written."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        decoder = ReferenceDecoder(config)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.fill_(0.01)
    return decoder.eval()


def bytes_of(decoder: torch.nn.Module, *, trained: bool = False) -> int:
    """Return the bytes of a decoder's parameters, or of those that are trained."""
    return sum(
        one.numel() * one.element_size()
        for one in decoder.parameters()
        if one.requires_grad or not trained
    )


def local_path(
    name: str,
    size: int,
    save: Callable[[Path], None],
    load: Callable[[Path], object],
    root: Path,
) -> None:
    """Time one path on this machine, and report its writing and its loading against plain files of `size` bytes."""
    place, plain = root / "published", root / "plain"
    source, target = bytearray(os.urandom(1 << 20)) * (size >> 20), bytearray(size)
    source += bytes(size - len(source))

    def write() -> float:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return seconds(lambda: save(place))

    def write_plain() -> float:
        plain.unlink(missing_ok=True)
        return seconds(lambda: plain.write_bytes(source))

    def read_plain() -> None:
        with plain.open("rb", buffering=0) as file:
            view = memoryview(target)
            while view and (count := file.readinto(view)):
                view = view[count:]

    sides = {
        "write": write,
        "plain write": write_plain,
        "load": lambda: seconds(lambda: load(place)),
        "plain read": lambda: seconds(read_plain),
    }
    rates = {
        side: size / GIGA / statistics.median(times)
        for side, times in by_turns(sides, ROUNDS).items()
    }
    whole = 1 / (1 / rates["write"] + 1 / rates["load"])
    print(f"{name}: {size / GIGA / whole:.3f} s in all", flush=True)
    report(
        f"{name}, write",
        rates["write"],
        "GB/s",
        peer="plain write",
        peer_value=rates["plain write"],
    )
    report(
        f"{name}, load", rates["load"], "GB/s", peer="plain read", peer_value=rates["plain read"]
    )
    shutil.rmtree(place)
    plain.unlink()


def on_this_machine(most: float, root: Path) -> None:
    """Time folder and adapter for each size."""
    print(f"memory, copied: {memory_rate():.2f} GB/s; disk, flushed: {disk_rate(root):.2f} GB/s")
    for decoder in models(most, root):
        size, other = bytes_of(decoder), filled(decoder.config)
        local_path(
            f"folder of {size / GIGA:.2f} GB",
            size,
            partial(save_decoder, decoder),
            partial(load_weights, other),
            root,
        )
        attach(decoder, LORA)
        attach(other, LORA)
        adapter = bytes_of(decoder, trained=True)
        local_path(
            f"adapter of {adapter / GIGA:.3f} GB for {size / GIGA:.2f} GB",
            adapter,
            partial(save_adapter, decoder, LORA),
            partial(load_adapter, other),
            root,
        )


def memory_rate() -> float:
    """Return GB/s, read and written, of a copy that no cache holds."""
    source = torch.full((1 << 28,), 1, dtype=torch.uint8)
    target = torch.empty_like(source)
    times = by_turns({"copy": lambda: seconds(lambda: target.copy_(source))}, ROUNDS)["copy"]
    return 2 * len(source) / GIGA / statistics.median(times)


def disk_rate(root: Path) -> float:
    """Return GB/s of a write that ends when it is on the disk."""
    data, place = os.urandom(1 << 27), root / "flushed"

    def write() -> None:
        with place.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    times = by_turns({"write": lambda: seconds(write)}, ROUNDS)["write"]
    place.unlink()
    return len(data) / GIGA / statistics.median(times)


def on_servers(
    urls: Sequence[str],
    folder: Path,
    root: Path,
    *,
    key: str | None = None,
    connect: Connect = nccl_engine,
) -> None:
    """Time the folder and the weight transfer to running vLLM servers of a model.

    `root` must be seen by the servers under the same path. `connect` makes the trainer's side of the transfer.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, sender in (("vLLM, folder", None), ("vLLM, transfer", connect)):
        decoder = load_decoder(folder, device=device)
        publisher = Publisher(
            decoder,
            None,
            root=root / "published",
            name="bench",
            find=lambda version: folder if version is None else None,
            connect=sender,
        )
        config = decoder.config
        servers = Servers(tuple(urls), key)
        sampler = VllmSampler(servers, publisher, config.vocab_size, config.max_position_embeddings)
        try:
            sampler.publish(None)  # Connects; not timed.
            with sampler.exclusive(in_flight=True):
                names = [f"bench-{number}" for number in range(ROUNDS + 1)]
                times = [seconds(partial(sampler.publish, name)) for name in names]
        finally:
            sampler.close()
        size, median = bytes_of(decoder), statistics.median(times[1:])
        print(f"{name}, {len(urls)} servers, {size / GIGA:.2f} GB: {median:.3f} s", flush=True)
        report(f"{name}, {len(urls)} servers, {size / GIGA:.2f} GB", size / GIGA / median, "GB/s")


def main() -> int:
    """Time the paths that exist here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--most", type=float, default=size(4.0, 0.01), help="GiB of the largest model"
    )
    parser.add_argument("--folder", type=Path, help="on the disk that is to be timed")
    parser.add_argument("--servers", action="append", default=[], metavar="URL")
    parser.add_argument("--model", type=Path, help="folder of the servers' model")
    parser.add_argument("--key-env", help="variable with the servers' key")
    options = parser.parse_args()
    if options.servers and options.model is None:
        parser.error("--servers needs --model, the folder that they serve")
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        if not options.servers:
            on_this_machine(options.most * 2**30, Path(root))
            print("vLLM's transfer: not timed; it needs --servers and --model.")
        elif find_spec("vllm") is None:
            print("vLLM is not installed here: its trainer's half sends the weights.")
            return 1
        else:
            key = os.environ[options.key_env] if options.key_env else None
            on_servers(options.servers, options.model, Path(root), key=key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
