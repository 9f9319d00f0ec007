"""A shop of one page, served on loopback for one run; it remembers what was bought."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PAGE = """<!doctype html><title>Shop</title><h1>Shop</h1>
<form method="post">
  <button name="item" value="lamp">Buy a lamp</button>
  <button name="item" value="chair">Buy a chair</button>
  <button name="item" value="table">Buy a table</button>
</form><p id="bought">{bought}</p>"""


class Site(ThreadingHTTPServer):
    """The shop of one run, from `open` to `close`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Visit)
        self.bought: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"
        Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Visit(BaseHTTPRequestHandler):
    """One request."""

    server: Site

    def do_GET(self) -> None:
        self._show()

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.bought.append(sent.removeprefix("item="))
        self._show()

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal is the evaluation's."""

    def _show(self) -> None:
        page = PAGE.format(bought=f"Bought: {', '.join(self.server.bought) or 'nothing'}").encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
