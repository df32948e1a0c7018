"""Requests as nobody sends them by accident: each is answered, none with a failure of ours."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from harness.fuzz import format_recording, mutate, recordings
from harness.fuzz.fuzzer import Format

ROUTES = (
    "/runs",
    "/recording",
    "/job",
    "/tiles",
    "/window",
    "/export.csv",
    "/export.html",
    "/static/index.js",
    "/static/style.css",
)
SIDE = "/static/"
NAMES = ("id", "axis", "level", "first", "last", "count", "lanes", "window", "table", "v", "x")
USUAL: dict[str, tuple[str, ...]] = {
    "axis": ("step", "time"),
    "level": ("0", "3", "24"),
    "first": ("0", "5"),
    "last": ("9", "99"),
    "count": ("1", "64", "4096"),
    "window": ("0", "1"),
    "table": ("steps", "phases", "kernels"),
    "lanes": ("steps", "input_wait", "gpu0:utilization_pct", "steps,pipeline,gpu1:power_mw"),
    "v": ("1", ""),
    "x": ("",),
}
ODD = (
    "-1",
    "1e3",
    "0x10",
    "1_000",
    "+1",
    " 1",
    "٣",
    "1" * 400,
    "NaN",
    "nan",
    "inf",
    "true",
    "null",
    "../../etc/passwd",
    "..%2f..",
    "%00",
    "%ff%fe",
    "%",
    "~",
    "~7E",
    "a\0b",
    "\r\nX: y",
    "<script>",
    "steps:__class__",
    ":::",
    "+:+",
    "gpu0:",
    ",",
    ",,,,",
    "steps," * 600,
    "gpu0:" + "a+" * 2000,
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "62",
    "63",
    "C:\\x",
    "file:///etc/passwd",
    "é",
    "\ud800",
    "\u202e",
    "'; --",
    "{}",
    "[]",
    "()",
)
PATHS = (
    "/static/../plugin.py",
    "/static/..%2f..%2fsetup.py",
    "/static/.",
    "/static/",
    "/static/a/b.js",
    "/static/\0",
    "/static/" + "a" * 5000,
    "/static/index.js/",
    "/static/%2e%2e/x",
    "//",
    "/runs/",
    "/static/\u202e",
    "/static/con",
    "/static/index.js%00.css",
)
METHODS = ("GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "X")
HEADERS = (
    ("Accept-Encoding", ("gzip", "identity", "gzip;q=0", "*", "\x01", "gzip" * 500)),
    ("Range", ("bytes=0-", "bytes=-1", "bytes=9-1", "x")),
    ("If-None-Match", ("*", '"x"')),
    ("If-Modified-Since", ("yesterday", "0")),
    ("Content-Length", ("-1", "99999999999", "x")),
    ("Content-Type", ("a/b; charset=\xff", "")),
    ("Transfer-Encoding", ("chunked", "x")),
    ("Cookie", ("a=b" * 400, "\xff")),
    ("Host", ("", "evil", "a:b:c")),
    ("X-Forwarded-Host", ("evil",)),
    ("Origin", ("null",)),
    ("User-Agent", ("", "\xff" * 100)),
    ("Accept", ("*/*;q=x",)),
)
STATUSES = {200, 400, 404, 405}


class _Server:
    """A log directory of two recordings, and the routes over it."""

    logdir: Path | None = None
    routes: dict[str, Any] | None = None
    ids: tuple[str, ...] = ()


server = _Server()


def prepare() -> None:
    format_recording.prepare()
    if server.logdir is None:
        server.logdir = recordings.scratch("requests")
        files = recordings.bases.files
        recordings.write(files["thirds"], server.logdir / "one")
        recordings.write(files["stalls"], server.logdir / "<two> é")
        recordings.write({**files["live"], "manifest.json": b"{"}, server.logdir / "broken")


def make(random: Random) -> bytes:
    """`{"path", "method", "query": [[name, value], …], "headers": [[name, value], …]}`."""
    path = random.choice(ROUTES) if random.random() < 0.93 else random.choice(PATHS)
    query = []
    if random.random() < 0.9:  # a recording that there is
        query.append(["id", f"#{random.randrange(4)}"])
    for name in ("axis", "level", "first", "count", "lanes") if path == "/tiles" else ():
        query.append([name, random.choice(USUAL[name])])
    for name in ("first", "last") if path == "/export.csv" else ():
        query.append([name, random.choice(USUAL[name])])
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        name = random.choice(NAMES) if random.random() < 0.95 else random.choice(ODD)
        value = _value(random, name)
        known = [one for one in query if one[0] == name]
        if known and random.random() < 0.7:
            random.choice(known)[1] = value
        else:
            query.append([name, value])
    if query and random.random() < 0.1:
        query.remove(random.choice(query))
    if random.random() < 0.05:
        query += [random.choice(query or [["id", "x"]])] * random.choice((2, 9, 300))
    headers = []
    for _ in range(random.choice((0, 0, 1, 2))):
        name, values = random.choice(HEADERS)
        headers.append([name, random.choice(values)])
    told = {"path": path, "method": random.choice(METHODS), "query": query, "headers": headers}
    return json.dumps(told, separators=(",", ":")).encode()


def _value(random: Random, name: str) -> str:
    match random.randrange(5):
        case 0:
            return random.choice(USUAL.get(name, ("#0", "#1", "one", "")))
        case 1:
            return str(mutate.number(random))
        case 2:
            return random.choice(mutate.TEXTS)
    return random.choice(ODD)


def check(data: bytes, folder: Path) -> str:
    try:
        told = json.loads(data)
        path, method, pairs = str(told["path"]), str(told["method"]), list(told["query"])
        query = "&".join(f"{_quoted(name)}={_quoted(_id(value))}" for name, value in pairs)
        headers = [(str(name), str(value)) for name, value in told["headers"]]
    except (ValueError, KeyError, TypeError):
        return "no request"
    with format_recording.Unforeseen() as unforeseen:
        try:
            return _answered(path, method, query, headers)
        finally:
            if unforeseen.error is not None:
                raise unforeseen.error


def _id(value: Any) -> str:
    """`#1` stands for the id of a recording."""
    _routes()
    text = str(value)
    if text[:1] == "#" and text[1:].isascii() and text[1:].isdigit():
        return server.ids[int(text[1:]) % len(server.ids)]
    return text


def _quoted(text: Any) -> str:
    # What is escaped already stays so: the server decodes once.
    return quote(str(text), safe="%+,:/", errors="surrogatepass")


def _routes() -> dict[str, Any]:
    if server.routes is None:
        assert server.logdir is not None
        server.routes = format_recording.app(server.logdir)
        _, body = format_recording.answer(server.routes, "/runs", "")
        server.ids = tuple(one["id"] for one in json.loads(body)["recordings"])
        assert len(server.ids) == 3
    return server.routes


def _answered(path: str, method: str, query: str, headers: list[tuple[str, str]]) -> str:
    from werkzeug.test import EnvironBuilder, run_wsgi_app

    routes = _routes()
    known = routes.get(path)
    if known is None:
        if not path.startswith(SIDE):
            return "not ours"  # TensorBoard answers that
        known = routes["/static/*"]
    try:
        environ = EnvironBuilder(path=path, query_string=query, method=method).get_environ()
    except (ValueError, UnicodeError):
        return "not sent"
    for name, value in headers:
        key = name.upper().replace("-", "_")
        environ[key if key.startswith("CONTENT_") else f"HTTP_{key}"] = value
    chunks, status, replied = run_wsgi_app(known, environ, buffered=True)
    body = b"".join(chunks)
    code = int(status.partition(" ")[0])
    assert code in STATUSES, f"status {code}"
    assert (code == 405) == (method not in ("GET", "HEAD")), f"{method}: {code}"
    assert replied["Content-Security-Policy"].startswith("default-src 'none'")
    assert replied["X-Content-Type-Options"] == "nosniff"
    if method == "HEAD":
        assert not body, "a body for HEAD"
        return str(code)
    if replied.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    kind = replied["Content-Type"].partition(";")[0]
    if kind == "application/json":
        said = json.loads(body, parse_constant=format_recording.refuse)
        if code != 200:
            line = said["error"]
            assert 0 < len(line) < 700 and not set(line) & set("\r\n"), "an error of several lines"
    else:
        assert code == 200, f"{code} of {kind}"
    return str(code)


FORMAT = Format("request", make, check, prepare=prepare, seconds=10, memory=600 << 20, memory_factor=0)
