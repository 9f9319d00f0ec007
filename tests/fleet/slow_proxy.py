"""A proxy before a platform that holds up some of its requests, for tests."""

import asyncio
import threading

from aiohttp import ClientSession, ClientTimeout, web


class SlowProxy:
    """`with SlowProxy(url, "/v2/fleet/steps", seconds) as proxy: proxy.url`"""

    def __init__(self, url: str, path: str, seconds: float) -> None:
        self.platform, self.path, self.seconds = url, path, seconds
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        self._do(self._begin())
        return self

    def __exit__(self, *_):
        self._do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _begin(self):
        self.session = ClientSession(timeout=ClientTimeout(total=300), auto_decompress=False)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{rest:.*}", self._pass_on)
        self.runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def _end(self):
        await self.runner.cleanup()
        await self.session.close()

    async def _pass_on(self, request):
        body = await request.read()
        if request.path.startswith(self.path):
            await asyncio.sleep(self.seconds)
        url = self.platform + request.raw_path
        headers = {k: v for k, v in request.headers.items() if k.lower() != "host"}
        async with self.session.request(request.method, url, data=body, headers=headers) as answer:
            kept = ("content-type", "content-encoding")
            headers = {k: v for k, v in answer.headers.items() if k.lower() in kept}
            return web.Response(body=await answer.read(), status=answer.status, headers=headers)

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)
