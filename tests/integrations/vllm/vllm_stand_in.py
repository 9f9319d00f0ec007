"""A stand-in for a vLLM server: the routes that we use, on a real socket, as strict as vLLM's documents are.

It draws with one of our own tiny decoders, so its logprobs are real. Fields that vLLM does not know are refused, and so are
calls in a wrong order; where vLLM would silently do something else (its generation_config.json, raw logprobs, keys and values of
other weights), it does that too. It can be held between two tokens, killed, and started again on its port.
"""

import asyncio
import itertools
import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from pydantic import ValidationError
from tests.integrations.vllm.vllm_requests import (
    CheckRequest,
    CompletionRequest,
    GenerateRequest,
    LoadRequest,
    Options,
    PrefixCache,
    Refused,
    RpcRequest,
    Sequence,
    UnloadRequest,
    VersionRequest,
    checksums_of,
    choice_of,
)
from tests.integrations.vllm.vllm_transfer import ReceivingHalf

from hud.engine.lora import load_adapter
from hud.engine.pretrained import load_decoder, load_weights
from hud.engine.sample.token_sampling import Uniforms, likeliest_tokens, sample_tokens
from hud.trace import SamplingParams

SAMPLING = ("/v1/completions", "/inference/v1/generate")
COMMON = (*SAMPLING, "/health", "/version", "/v1/models", "/weight_checker")


class StandIn:
    """`with StandIn(folder) as server: server.url`"""

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, **options: Any
    ) -> None:
        """`port`: 0 finds a free one."""
        self.folder, self.host = folder, host
        self.options = Options(**options)
        with socket.socket() as found:
            found.bind((host, port))
            self.port = found.getsockname()[1]
        self.url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.port}"
        self.calls: list[str] = []
        """What was asked beside completions, health and checksums, in order."""
        self.checked = 0
        """How often its checksums were asked for."""
        self.failing_checksums = False
        self.requests: list[CompletionRequest] = []
        """Completions, without probes."""
        self.sampled_by: set[str] = set()
        """Endpoints that were asked for completions, probes included."""
        self.limit: int | None = None
        """Tokens that a sequence may have before it waits; None: no limit."""
        self.refusing = False
        """True: it drains. Nothing new is taken; what it has begun goes on."""
        self.failing_reload = False
        self.silent = False
        """True: it takes connections and answers nothing."""
        self.reached = threading.Event()
        """Set while every sequence waits at the limit."""
        self.up = False
        self.start()

    # -- from the test's thread ---------------------------------------------------------------------

    @property
    def names_weights(self) -> bool:
        return tuple(map(int, self.options.version.split("."))) >= (0, 33)

    def start(self) -> None:
        """Begin, with the weights of the folder, as a process that was started anew."""
        self.decoder = load_decoder(self.folder)
        self.adapters: dict[str, tuple[Path, Any]] = {}
        self.sequences: list[Sequence] = []
        self.cache = PrefixCache(self.options.block)
        self.paused = False
        self.receiving = ReceivingHalf(self.options.gpus)
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(30)
        self.up = True

    def kill(self) -> None:
        """Be gone at once: every connection is reset."""
        if self.up:
            self.up = False
            self.loop.call_soon_threadsafe(self._die)
            self.thread.join(10)

    def hold_at(self, tokens: int | None) -> None:
        self.reached.clear()
        self.limit = tokens

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- the server ---------------------------------------------------------------------------------

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._open())
        started.set()
        try:
            self.loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()

    async def _open(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 26)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        if self.names_weights:
            app.router.add_post("/inference/v1/generate", self._generate)
        if self.options.lora_api:
            app.router.add_post("/v1/load_lora_adapter", self._load)
            app.router.add_post("/v1/unload_lora_adapter", self._unload)
        if self.options.dev_mode:
            app.router.add_post("/pause", self._pause)
            app.router.add_post("/resume", self._resume)
            app.router.add_post("/collective_rpc", self._rpc)
            app.router.add_get("/get_world_size", self._world_size)
            for name in ("init_weight_transfer_engine", "start_weight_update"):
                app.router.add_post(f"/{name}", self._transferred)
            for name in ("update_weights", "finish_weight_update"):
                app.router.add_post(f"/{name}", self._transferred)
            if self.names_weights:
                app.router.add_post("/shutdown_weight_transfer_engine", self._transferred)
                app.router.add_post("/update_weight_version", self._named)
                app.router.add_post("/weight_checker", self._checksums)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.host, self.port, reuse_address=True).start()
        self.woken = asyncio.Event()
        self.engine = self.loop.create_task(self._draw_all())

    def _die(self) -> None:
        for site in list(self.runner.sites):
            site._server.close()
        for protocol in list(self.runner.server.connections):
            if protocol.transport is not None:
                protocol.transport.abort()
        self.loop.stop()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.silent:
            await asyncio.sleep(3600)
        key = self.options.served_key
        guarded = request.path.startswith(("/v1", "/inference"))
        if key and guarded and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path not in COMMON:
            self.calls.append(request.path.rpartition("/")[2])
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.json_response({"detail": "Not Found"}, status=404)
        except ValidationError as error:
            refused = Refused(400, str(error.errors(include_url=False)))
        except Refused as error:
            refused = error
        told = {"message": str(refused), "type": refused.kind, "param": None, "code": refused.code}
        return web.json_response({"error": told}, status=refused.code)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.options.version})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        base = {
            "id": self.options.served,
            "object": "model",
            "root": str(self.folder),
            "parent": None,
            "max_model_len": self.options.max_context,
        }
        adapters = [
            {"id": name, "object": "model", "root": str(path), "parent": self.options.served}
            for name, (path, _) in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": [base, *adapters]})

    # -- weights ------------------------------------------------------------------------------------

    async def _load(self, request: web.Request) -> web.Response:
        asked = LoadRequest.model_validate_json(await request.read())
        if asked.lora_name in self.adapters and not asked.load_inplace:
            raise Refused(
                400,
                f"The lora adapter '{asked.lora_name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True.",
                "InvalidUserInput",
            )
        folder = Path(asked.lora_path)
        if not (folder / "adapter_config.json").exists():
            raise Refused(
                404, f"Loading lora {asked.lora_name} failed: No adapter found for {folder}"
            )
        decoder = load_decoder(self.folder)
        load_adapter(decoder, folder)
        self.adapters[asked.lora_name] = (folder, decoder)
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        asked = UnloadRequest.model_validate_json(await request.read())
        if asked.lora_name not in self.adapters:
            raise Refused(
                404, f"The lora adapter '{asked.lora_name}' cannot be found.", "NotFoundError"
            )
        # What it would do to sequences that are being drawn with it is nowhere said: nobody may try.
        if any(one.asked.model == asked.lora_name for one in self.sequences):
            raise Refused(500, "unloaded in use")
        del self.adapters[asked.lora_name]
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")

    async def _pause(self, request: web.Request) -> web.Response:
        if request.query.get("mode") != "keep" or set(request.query) - {"mode", "clear_cache"}:
            raise Refused(400, "this stand-in only keeps")
        self.paused = True
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.paused = False
        self.woken.set()
        return web.json_response({"status": "resumed"})

    async def _rpc(self, request: web.Request) -> web.Response:
        asked = RpcRequest.model_validate_json(await request.read())
        folder = Path(asked.kwargs["weights_path"])
        if set(asked.kwargs) != {"weights_path"} or not folder.is_absolute():
            raise Refused(500, "reload_weights() got an unexpected argument")
        if self.sequences and not self.paused:
            raise Refused(500, "weights were changed while sequences were drawn")
        if self.failing_reload:
            raise Refused(500, "CUDA error: out of memory")
        load_weights(self.decoder, folder)
        return web.json_response({"results": [None]})

    async def _world_size(self, request: web.Request) -> web.Response:
        return web.json_response({"world_size": self.options.gpus})

    async def _named(self, request: web.Request) -> web.Response:
        asked = VersionRequest.model_validate_json(await request.read())
        self.receiving.version = asked.new_version
        return web.json_response({"message": "done"})

    async def _checksums(self, request: web.Request) -> web.Response:
        asked = CheckRequest.model_validate_json(await request.read())
        self.checked += 1
        if asked.action != "checksum":
            raise Refused(400, "this stand-in only reads weights")
        if self.paused:  # Versions after 0.33 say so.
            raise Refused(409, "the engine is paused")
        if self.failing_checksums:
            raise Refused(500, "Duplicate weight checksum keys")
        return web.json_response({"checksums": checksums_of(self.decoder, self.options.layout)})

    async def _transferred(self, request: web.Request) -> web.Response:
        """One of the calls of a weight transfer."""
        body = json.loads(await request.read() or "{}")
        call = request.path[1:]
        updating = call not in ("init_weight_transfer_engine", "shutdown_weight_transfer_engine")
        if updating and self.sequences and not self.paused:
            raise Refused(500, "weights were changed while sequences were drawn")
        if self.failing_reload and call == "update_weights":
            self.receiving.started = False  # What fails is cleaned up.
            raise Refused(500, "CUDA error: out of memory")
        await self.receiving.called(call, body, self.decoder)
        return web.json_response({"message": "done"})

    # -- drawing ------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = CompletionRequest.model_validate_json(await request.read())
        return await self._sampled(request, asked)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if not self.options.scale_out:
            raise Refused(403, "Scale-out endpoints are disabled.", "PermissionDeniedError")
        asked = GenerateRequest.model_validate_json(await request.read())
        if asked.sampling_params.detokenize:
            raise Refused(400, "this stand-in has no tokenizer")
        return await self._sampled(request, asked.completion(), generated=True)

    async def _sampled(
        self, request: web.Request, asked: CompletionRequest, *, generated: bool = False
    ) -> web.StreamResponse:
        if self.refusing:
            raise Refused(503, "The server is shutting down.", "ServiceUnavailable")
        if asked.model != self.options.served and asked.model not in self.adapters:
            raise Refused(404, f"The model `{asked.model}` does not exist.", "NotFoundError")
        size = self.decoder.config.vocab_size
        if max(asked.prompt) >= size or min(asked.prompt) < 0:
            raise Refused(400, f"Token id {max(asked.prompt)} is out of vocabulary")
        if len(asked.prompt) + asked.max_tokens > self.options.max_context:
            raise Refused(400, "This model's maximum context length is too small for the request.")
        if asked.return_weight_versions and not self.names_weights:
            raise Refused(400, "this version ignores return_weight_versions")
        if asked.stream_options is not None and not asked.stream:
            raise Refused(400, "Stream options can only be defined when `stream=True`.")
        if asked.stream:
            self.requests.append(asked)
        self.sampled_by.add(request.path)
        sequence = Sequence(
            asked, self._params(asked), Uniforms(asked.seed), self.cache.look_up(asked), generated
        )
        self.sequences.append(sequence)
        self.woken.set()
        try:
            if asked.stream:
                return await self._streamed(request, sequence)
            rows = [await sequence.rows.get() for _ in range(asked.max_tokens)]
            choice = choice_of(sequence, rows, ids=self.options.token_ids)
            return web.json_response({"id": "cmpl-1", "choices": [choice], "usage": {}})
        finally:
            if sequence in self.sequences:
                self.sequences.remove(sequence)

    def _params(self, asked: CompletionRequest) -> SamplingParams:
        """As a model's generation_config.json has it, unless the request says otherwise."""
        usual = {
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 20,
            "min_p": 0.1,
            "repetition_penalty": 1.05,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
        }
        given = {name: getattr(asked, name) for name in usual}
        said = {name: usual[name] if value is None else value for name, value in given.items()}
        neutral = (said["min_p"], said["presence_penalty"], said["frequency_penalty"])
        if neutral != (0, 0, 0) or said["repetition_penalty"] != 1:
            raise Refused(400, "this stand-in computes no penalties")
        return SamplingParams(
            temperature=said["temperature"], top_p=said["top_p"], top_k=max(0, said["top_k"])
        )

    async def _streamed(self, request: web.Request, sequence: Sequence) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in itertools.count():
            row = await sequence.rows.get()
            choice = choice_of(sequence, [row], ids=self.options.token_ids)
            if number == 0 and not sequence.generated:
                choice["prompt_token_ids"] = sequence.asked.prompt
            await self._event(response, {"id": "cmpl-1", "choices": [choice]})
            if row["reason"]:
                break
        usage = {
            "prompt_tokens": len(sequence.asked.prompt),
            "completion_tokens": len(sequence.ids),
            "prompt_tokens_details": {"cached_tokens": sequence.cached},
        }
        if sequence.asked.stream_options and sequence.asked.stream_options.include_usage:
            await self._event(response, {"id": "cmpl-1", "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, data: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(data)}\n\n".encode())

    async def _draw_all(self) -> None:
        while True:
            ready = [one for one in self.sequences if self._may_draw(one)]
            if not ready:
                if self.sequences and self.limit is not None:
                    self.reached.set()
                self.woken.clear()
                # Tests let a held server go on from another thread.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.woken.wait(), 0.01)
                continue
            for model in {one.asked.model for one in ready}:
                self._draw([one for one in ready if one.asked.model == model], model)
            await asyncio.sleep(0)

    def _may_draw(self, one: Sequence) -> bool:
        probe = not one.asked.stream
        return not self.paused and (probe or self.limit is None or len(one.ids) < self.limit)

    @torch.no_grad()
    def _draw(self, batch: list[Sequence], model: str) -> None:
        decoder = self.adapters[model][1] if model in self.adapters else self.decoder
        rows = [one.asked.prompt + one.ids for one in batch]
        ends = torch.tensor([0, *itertools.accumulate(map(len, rows))])
        positions = torch.cat([torch.arange(len(row)) for row in rows])
        hidden = decoder.hidden_packed(torch.tensor(list(itertools.chain(*rows))), positions, ends)
        logits = decoder.logits(hidden[ends[1:] - 1])
        params = [one.params for one in batch]
        tokens, logprobs = sample_tokens(logits, params, [one.uniforms.next() for one in batch])
        most = max(one.asked.logprobs or 0 for one in batch)
        likeliest = likeliest_tokens(logits, params, most) if most else [[] for _ in batch]
        raw = logits.float().log_softmax(-1)
        for row, (one, token) in enumerate(zip(batch, tokens, strict=True)):
            logprob, top = logprobs[row], likeliest[row][: one.asked.logprobs or 0]
            if not self.options.processed:
                logprob = float(raw[row, token])
                top = [(other, float(raw[row, other])) for other, _ in top]
            self._put(one, token, logprob, top)

    def _put(self, one: Sequence, token: int, logprob: float, top: list[tuple[int, float]]) -> None:
        asked = one.asked
        one.ids.append(token)
        one.weights.append(self.receiving.version)
        end = token in asked.stop_token_ids or (not asked.ignore_eos and token == 0)
        reason = "stop" if end else "length" if len(one.ids) == asked.max_tokens else None
        told = {f"token_id:{other}": value for other, value in [(token, logprob), *top]}
        one.rows.put_nowait({"token": token, "logprob": logprob, "top": told, "reason": reason})
        if reason:
            self.cache.add(asked, one.ids)
            self.sequences.remove(one)

    def throw_out(self) -> None:
        """End everything on its way as `/pause?mode=abort` of somebody else would."""

        def abort() -> None:
            for sequence in self.sequences:
                sequence.rows.put_nowait({"token": None, "reason": "abort"})
            self.sequences.clear()

        self.loop.call_soon_threadsafe(abort)
