"""Malformed requests: bodies, paths, queries, headers and methods that no client sends on purpose."""

JSON = (b"content-type", b"application/json")
FORM = (b"content-type", b"application/x-www-form-urlencoded")
MULTIPART = (b"content-type", b"multipart/form-data; boundary=x")

_VALUES = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"1e400",
    b"-0.0",
    b"NaN",
    b"Infinity",
    b"9" * 400,
    b'""',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\xed\xa0\x80"',
    b'"\\u202e\\u2066\\ufeff"',
    b"[]",
    b"{}",
    b"[[]]",
    b'{"": ""}',
    b'["x", 1, null]',
    b'"' + b"x" * 70_000 + b'"',
)
FIELDS = (
    "name",
    "model",
    "messages",
    "task",
    "tasks",
    "config",
    "key",
    "id",
    "limit",
    "checkpoint_id",
    "worker",
    "traces",
    "trace_id",
    "value",
    "args",
    "scopes",
    "expires_in",
)
"""Names of fields that several routes read."""

BODIES: list[tuple[tuple[bytes, bytes], bytes]] = [
    *((JSON, value) for value in _VALUES),
    *(
        (JSON, b'{"%s": %s}' % (name.encode(), _VALUES[number % len(_VALUES)]))
        for number, name in enumerate(FIELDS)
    ),
    *(
        (JSON, b"{" + b", ".join(b'"%s": %s' % (name.encode(), value) for name in FIELDS) + b"}")
        for value in _VALUES[:19]
    ),
    (JSON, b""),
    (JSON, b"{"),
    (JSON, b"\xff\xfe{\x00}\x00"),
    (JSON, b"\xef\xbb\xbf{}"),
    (JSON, b"{} {}"),
    (JSON, b'{"name": 1, "name": 2}'),
    (JSON, b"[" * 50_000),
    (JSON, b"[" * 50_000 + b"]" * 50_000),
    (JSON, b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    (JSON, b'{"name": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    ((b"content-type", b"application/json; charset=utf-16"), b"{}"),
    ((b"content-type", b"text/plain"), b"{}"),
    ((b"content-type", b"\xff\xfe"), b"{}"),
    (FORM, b"%ff=%00&name=%ed%a0%80&&=&a"),
    (FORM, b"name=" + b"%F0%9F%92%A9" * 500),
    (FORM, b"&".join(b"a%d=1" % number for number in range(3_000))),
    (MULTIPART, b""),
    (MULTIPART, b"--x\r\ncontent-disposition: form-data\r\n\r\n"),
    (
        MULTIPART,
        b'--x\r\ncontent-disposition: form-data; name="name"; filename="../../x"\r\n\r\nx\r\n--x--',
    ),
    ((b"content-type", b"multipart/form-data"), b"--x"),
]

IDS = (
    "..",
    "../../etc/passwd",
    "\0",
    "%00",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "'; DROP TABLE runs; --",
    "{{7*7}}",
    "${7*7}",
    "<script>alert(1)</script>",
    "x" * 5_000,
    "-1",
    str(2**70),
    "1e400",
    "\u202e\u2066",
    "a\r\nb: c",
    "ａ" * 64,
    "0" * 31 + "/",
    " ",
    "*",
    "%s%n",
)
QUERIES = (
    "limit=-1&offset=-1",
    "limit=99999999999999999999&offset=99999999999999999999",
    "limit=NaN&offset=&after=1e400",
    "limit=1&limit=2&limit=3",
    "%ff=%00&name=%ed%a0%80&text=%00",
    "&&&=&=&a",
    "text=%25%5F%5C%27%22&search=%25%5F%5C&state=%00&with=%00&model=%00&sort=%27",
    "taskset=..&task=%00&checkpoint=-1&environment=../..&model=" + "x" * 3_000,
    "&".join(f"a{number}=1" for number in range(2_000)),
    "seen=%00&worker=%ff&attempt=-1&expires=x&signature=%ff",
    "after=99999999999999999999999",
    "code=%00%ff&next=//evil.example.com",
)
HEADERS = (
    [(b"accept", b"*/*;q=nonsense, \xff")],
    [(b"accept", b"text/html"), (b"hx-request", b"true"), (b"hx-current-url", b"\xff")],
    [(b"range", b"bytes=-99999999999999999999,,5-1,a-b")],
    [(b"if-none-match", b'"\xff"'), (b"if-modified-since", b"yesterday")],
    [(b"cookie", b"hud_session=" + b"\xff" * 3_000 + b"; ;=;a")],
    [(b"accept-encoding", b"\xff, gzip;q=-1"), (b"accept-language", b"\xff")],
    [
        (b"x-forwarded-for", b"' OR 1=1"),
        (b"x-forwarded-proto", b"javascript"),
        (b"forwarded", b"\xff"),
    ],
    [(b"last-event-id", b"\xff\x00"), (b"origin", b"null"), (b"referer", b"\xff")],
    [(b"idempotency-key", b"\xff" * 3_000), (b"content-encoding", b"gzip, br, \xff")],
    [
        (b"traceparent", b"00-x-y-z"),
        (b"anthropic-version", b"\xff"),
        (b"x-goog-api-client", b"\xff"),
    ],
)
METHODS = ("PATCH", "OPTIONS", "TRACE", "PROPFIND", "DELETE", "PUT", "HEAD")
