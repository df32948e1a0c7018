"""The plugin: routes of the GPU Utilization tab, and nothing else."""

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from tensorboard.plugins.base_plugin import FrontendMetadata
from werkzeug import wrappers

from gpu_util_callback import daemon
from gpu_util_callback.diagnosis import diagnose, run_report
from gpu_util_callback.diagnosis.report_types import RunReport
from gpu_util_callback.diagnosis.survey import Row, Survey, row_of_open
from gpu_util_callback.diagnosis.total_time import total
from gpu_util_callback.recording.manifest import plain, strict_json
from gpu_util_callback.recording.problems import reported, unexpected
from gpu_util_callback.recording.reader import Recording
from gpu_util_callback.recording.schema import PLUGIN_NAME, TABLES
from tensorboard_plugin.downloads import csv_lines, html_report
from tensorboard_plugin.jobs import MAX_WORKERS, SessionClocks, job_reply
from tensorboard_plugin.replies import (
    listed,
    looked_in,
    recording_reply,
    runs_head,
    static_file,
    total_reply,
    window_reply,
)
from tensorboard_plugin.reply_types import LogDirectory
from tensorboard_plugin.runs import OpenedRecording, RunIndex, local_directories, log_directory, run_directories
from tensorboard_plugin.tiles.recording_tiles import Recent
from tensorboard_plugin.tiles.server import BadTile, TileServer

logger = logging.getLogger("gpu_util_callback")

# A job's reply needs the reports of all its workers and of earlier fits: all must be kept.
MAX_REPORTS = 2 * MAX_WORKERS
# A request for the sums of all runs diagnoses recordings this long; the next request continues.
DIAGNOSE_S = 1.5
# The most that the tab compares.
MAX_COMPARED = 8
# A fixed table: some Windows registries give .js another type.
TYPES = {"js": "text/javascript", "css": "text/css"}
METHODS = ("GET", "HEAD")
# Nothing served here is a page of its own: the tab's module runs in TensorBoard's frame, under
# TensorBoard's policy. A response opened by its own address gets nothing active.
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
NOT_FOUND_STATIC = "the tab's files are not built: run `npm ci && npm run build` in frontend/"


class _Refused(Exception):
    """A request that cannot be answered: HTTP status and one clear line."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


Handler = Callable[[wrappers.Request], wrappers.Response]


class GpuUtilizationPlugin(base_plugin.TBPlugin):
    """Server of the recordings below the log directory.

    It keeps out of TensorBoard's way: nothing is read until the tab asks, and the tab appears
    through the marker event, not through a walk of the directory.
    """

    plugin_name = PLUGIN_NAME

    def __init__(self, context: base_plugin.TBContext):
        self._logdir = context.logdir or ""
        self._spec = getattr(context.flags, "logdir_spec", "") or ""
        self._multiplexer = context.multiplexer
        self._data_provider = context.data_provider
        self._tiles = TileServer()
        self._names: list[str] = []
        self._index = RunIndex(
            lambda: run_directories(self._logdir, self._names, self._multiplexer),
            within=lambda path: log_directory(self._logdir, self._spec, path),
            homes=local_directories(self._logdir, self._spec),
        )
        self._clocks = SessionClocks()
        # What the last total was made of (None: not yet complete), and it; each recording's row.
        self._total: tuple[list | None, str] | None = None
        self._rows: dict[str, tuple[str, bool, Row]] = {}
        # Computed once, however many requests wait for it.
        self._totalling = threading.Lock()
        self._reporting: dict[str, threading.Lock] = {}
        self._reports: Recent[tuple[Recording, str, RunReport]] = Recent(MAX_REPORTS)
        self._patience = Deadline()
        # Made once: while TensorBoard reads event files in Python, each file opened during its
        # plugin listing waits milliseconds for the interpreter.
        self._metadata = FrontendMetadata(
            es_module_path=f"/static/index.js?v={_frontend_digest()}", tab_name="GPU Utilization"
        )

    def is_active(self) -> bool:
        """Return False: TensorBoard finds the marker events by itself."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        """Return the module TensorBoard imports; its address changes with its content."""
        return self._metadata

    def get_plugin_apps(self) -> dict[str, object]:
        """Return the routes below `data/plugin/gpu_utilization`."""
        routes: dict[str, Handler] = {
            "/static/*": self._serve_static,
            "/runs": self._serve_runs,
            "/total": self._serve_total,
            "/recording": self._serve_recording,
            "/job": self._serve_job,
            "/tiles": self._serve_tiles,
            "/window": self._serve_window,
            "/export.csv": self._serve_csv,
            "/export.html": self._serve_html,
        }
        return {
            route: _app(handler if route == "/static/*" else self._with_deadline(route, handler))
            for route, handler in routes.items()
        }

    def _with_deadline(self, route: str, handler: Handler) -> Handler:
        """Wrap a handler so that it gives up where a disk or a store does not answer in time."""
        limit_s = EXPORT_S if route.startswith("/export") else ANSWER_S

        def answer(request: wrappers.Request) -> wrappers.Response:
            key = request.args.get("id", "") or route
            return self._patience.ask(key, lambda: handler(request), limit_s)

        return answer

    def _looked_in(self) -> LogDirectory:
        """Return the log directory as shown; whether it exists is unknown where nothing answers."""
        logdir, whole = self._logdir or self._spec, bool(self._logdir)
        try:
            return self._patience.ask("log directory", lambda: looked_in(logdir, whole), LOOK_S)
        except NoAnswer:
            return {"logdir": logdir, "logdir_exists": None}

    # --- routes -----------------------------------------------------------------------------------

    def _serve_static(self, request: wrappers.Request) -> wrappers.Response:
        """Serve a file of the built frontend; one with a version in its address may be cached for a day."""
        name = request.path.rpartition("/static/")[2]
        content = static_file(name)
        if content is None:
            built = static_file("index.js") is not None
            raise _Refused(404, f"no file {name[:100]!r}" if built else NOT_FOUND_STATIC)
        kind = TYPES.get(name.rpartition(".")[2], "application/octet-stream")
        expires = 86400 if request.args.get("v") else 0
        response = http_util.Respond(request, content, kind, expires=expires)
        return response if expires else _unkept(response)

    def _serve_runs(self, request: wrappers.Request) -> wrappers.Response:
        """Serve the list of recordings, a row each, and what could not be read."""
        self._refresh_names(request)
        entries = self._index.entries()
        complete = self._index.complete
        problems = list(self._index.problems)
        # Most of thousands of recordings have not changed: their rows are kept as text.
        rows = []
        for entry in entries:
            problems += entry.recording.problems
            try:
                rows.append(_row(entry))
            except Exception as error:
                problems.append(unexpected(entry.recording.path, error))
        head = runs_head(self._looked_in(), self._names, reported(problems))
        head |= {"complete": complete, "progress": self._index.progress}
        text = f'{_dumped(head)[:-1]},"recordings":[{",".join(rows)}]}}'
        return _unkept(http_util.Respond(request, text, "application/json"))

    def _serve_total(self, request: wrappers.Request) -> wrappers.Response:
        """Serve what all runs lost, and a row for each training."""
        self._refresh_names(request)
        entries = self._index.entries()
        made_of = [(entry.recording.id, entry.revision) for entry in entries]
        # Not for long: who has it may wait for a disk, which others leave out by then.
        alone = self._totalling.acquire(timeout=2 * DIAGNOSE_S)
        try:
            if self._total is None or self._total[0] != made_of:  # a recording has changed
                survey, undiagnosed = self._survey(entries)
                reply = total_reply(total(survey))
                reply["left"] = undiagnosed
                self._total = (None if undiagnosed else made_of, _dumped(reply))
            text = self._total[1]
        finally:
            if alone:
                self._totalling.release()
        return _unkept(http_util.Respond(request, text, "application/json"))

    def _serve_recording(self, request: wrappers.Request) -> wrappers.Response:
        recording = self._recording(request)
        return _json(request, recording_reply(recording, recording.revision, self._report(recording)))

    def _serve_job(self, request: wrappers.Request) -> wrappers.Response:
        recording = self._recording(request)
        return _json(request, job_reply(recording, self._index.recordings(), self._report, self._clocks))

    def _serve_tiles(self, request: wrappers.Request) -> wrappers.Response:
        """Serve the buckets of a view as gzipped bytes; see `TileServer.tile`."""
        recording = self._recording(request)
        lanes = [lane for lane in request.args.get("lanes", "").split(",") if lane]
        try:
            content = self._tiles.tile(
                recording,
                request.args.get("axis", "step"),
                _integer(request, "level"),
                _integer(request, "first"),
                _integer(request, "count"),
                lanes,
            )
        except BadTile as error:
            raise _Refused(400, str(error)) from error
        return _unkept(http_util.Respond(request, content, "application/octet-stream", content_encoding="gzip"))

    def _serve_window(self, request: wrappers.Request) -> wrappers.Response:
        """Serve what a profiler window traced."""
        recording = self._recording(request)
        window = _integer(request, "window")
        reply = window_reply(recording, window) if window >= 0 else None
        if reply is None:
            raise _Refused(404, f"this recording has no profiler window {window}")
        return _json(request, reply)

    def _serve_csv(self, request: wrappers.Request) -> wrappers.Response:
        """Serve a table of the requested recordings as CSV; of several, each row begins with its recording."""
        recordings = self._recordings(request)
        table = request.args.get("table", "steps")
        if table not in TABLES:
            raise _Refused(400, f"no table {table[:40]!r}; there are {', '.join(TABLES)}")
        several, lines = len(recordings) > 1, []
        for i, recording in enumerate(recordings):
            first, last = (_bound(request, name, i) for name in ("first", "last"))
            lines.append(csv_lines(recording, table, first, last, recording.id if several else None, header=i == 0))
        # Rows are read as they are sent.
        sent = self._patience.stream(request.args.get("id", ""), chain.from_iterable(lines))
        return _download(sent, "text/csv", f"{table}.csv")

    def _serve_html(self, request: wrappers.Request) -> wrappers.Response:
        """Serve the requested recordings as one page to keep."""
        recordings = self._recordings(request)
        page = html_report(recordings, self._logdir or self._spec, shown=[recording.id for recording in recordings])
        # A file to keep, never a page of this server: its scripts are its own.
        return _download(page, "application/octet-stream", "gpu-utilization.html")

    def _survey(self, recordings: list[OpenedRecording]) -> tuple[Survey, int]:
        """Return the rows of recordings, and how many of them are left to be diagnosed.

        Killed runs have no diagnosis of their own: some of them are diagnosed with each request.
        """
        survey, undiagnosed = Survey(), 0
        deadline_s = time.monotonic() + DIAGNOSE_S
        rows: dict[str, tuple[str, bool, Row]] = {}
        for entry in recordings:
            recording = entry.recording
            revision, is_final, row = self._rows.get(recording.id, ("", False, {}))
            try:
                # What does not answer at the moment is left for a later request.
                if revision != entry.revision and not self._index.is_silent(entry):
                    revision, row = entry.revision, row_of_open(recording)
                    # In this order: the length of a run is read from a file of its own.
                    undiagnosed_yet = not row["steps"] or entry.status == "live"
                    is_final = row["judged"] or undiagnosed_yet
                if not is_final and row and time.monotonic() < deadline_s:
                    is_final = True  # once, also where that fails
                    row = row_of_open(recording, diagnose(recording))
            except Exception as error:  # it must not hide the others
                survey.problems.append(unexpected(recording.path, error))
            undiagnosed += not is_final
            if row:
                rows[recording.id] = revision, is_final, row
                survey.rows.append(row)
        self._rows = rows
        return survey, undiagnosed

    # --- helpers ----------------------------------------------------------------------------------

    def _refresh_names(self, request: wrappers.Request) -> None:
        """Fetch the names of the runs from TensorBoard."""
        from tensorboard import plugin_util

        runs = self._data_provider.list_runs(
            plugin_util.context(request.environ), experiment_id=plugin_util.experiment_id(request.environ)
        )
        self._names = sorted(run.run_name for run in runs)

    def _recordings(self, request: wrappers.Request) -> list[Recording]:
        """Return all requested recordings: the first and those compared with it."""
        ids = list(dict.fromkeys(request.args.getlist("id"))) or [""]
        if len(ids) > MAX_COMPARED:
            raise _Refused(400, f"at most {MAX_COMPARED} recordings at once")
        return [self._recording(request, id) for id in ids]

    def _recording(self, request: wrappers.Request, id: str | None = None) -> Recording:
        """Return the requested recording.

        Args:
            id: None = the request's.

        Raises:
            _Refused: 400 without an id, 404 for an unknown one.
        """
        id = request.args.get("id", "") if id is None else id
        if not id:
            raise _Refused(400, "which recording? give its id, as in ./runs")
        recording = self._index.find(id)
        if recording is None:  # a deep link may be the first request of all
            self._refresh_names(request)
            recording = self._index.find(id)
        if recording is None:
            raise _Refused(404, f"no recording {id[:200]!r} in this log directory; was it deleted?")
        return recording

    def _report(self, recording: Recording) -> RunReport:
        """Return a recording's report, made once for each revision."""
        revision = recording.revision
        with self._reporting.setdefault(recording.id, threading.Lock()):
            cached = self._reports.get(recording.id)
            if cached is None or cached[0] is not recording or cached[1] != revision:
                cached = (recording, revision, run_report(recording))
                self._reports.put(recording.id, cached)
            return cached[2]


def _frontend_digest() -> str:
    """Return twelve hex digits that change with the built frontend, for links to its files."""
    digest = hashlib.sha256()
    for name in ("index.js", "style.css"):
        digest.update(static_file(name) or b"")
    return digest.hexdigest()[:12]


def _app(handler: Handler) -> object:
    """Return a WSGI application of a handler; what the handler raises becomes an answer in JSON with its status."""

    @wrappers.Request.application
    def serve(request: wrappers.Request) -> wrappers.Response:
        if request.method in METHODS:
            response = answer(request)
        else:
            message = f"{request.method[:20]} is not allowed: only GET and HEAD are"
            response = _json(request, {"error": message}, 405)
            response.headers["Allow"] = ", ".join(METHODS)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    def answer(request: wrappers.Request) -> wrappers.Response:
        try:
            return handler(request)
        except _Refused as refused:
            return _json(request, {"error": str(refused)}, refused.status)
        except NoAnswer as late:
            return _json(request, {"error": str(late)}, 504)
        except Exception:
            # A recording may contain any data; TensorBoard's log gets the traceback.
            logger.exception("answering %s failed", request.path[:200])
            message = "this cannot be shown: see TensorBoard's log for details"
            return _json(request, {"error": message}, 422)

    return serve


def _json(request: wrappers.Request, value: object, status: int = 200) -> wrappers.Response:
    return _unkept(http_util.Respond(request, _dumped(value), "application/json", code=status))


def _dumped(value: object) -> str:
    """Return JSON in which what is no finite number is null."""
    # Respond would write NaN and infinities as strings: unknown values are null.
    try:
        return strict_json(value)
    except (TypeError, ValueError):  # numpy's numbers, or one that is not finite
        return strict_json(plain(value))


def _row(entry: OpenedRecording) -> str:
    """Return a recording's row of the list as JSON, kept until the recording changes."""
    recording = entry.recording
    key = (entry.looked_at, recording.session, len(recording.problems))
    if entry.row is None or entry.row[0] != key:
        entry.row = (key, _dumped(listed(recording, entry.status)))
    return entry.row[1]


def _download(lines: Iterable[str], kind: str, name: str) -> wrappers.Response:
    """Return a response that the browser saves under a name."""
    response = wrappers.Response((line.encode() for line in lines), mimetype=kind, direct_passthrough=False)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["X-Content-Type-Options"] = "nosniff"
    return _unkept(response)


def _unkept(response: wrappers.Response) -> wrappers.Response:
    """Mark a response as not cacheable: it is user data, and may change at any time."""
    response.headers["Cache-Control"] = "no-store"
    return response


def _bound(request: wrappers.Request, name: str, of: int) -> int | None:
    """Return an optional integer: one for all recordings, or one for each."""
    values = request.args.getlist(name)
    return _integer(request, name, min(of, len(values) - 1)) if values else None


def _integer(request: wrappers.Request, name: str, of: int = 0) -> int:
    """Return the `of`th value of an integer parameter of the request, counted from 0.

    Raises:
        _Refused: 400, it is missing or no integer.
    """
    text = [*request.args.getlist(name), ""][of]
    try:
        if len(text) > 20:
            raise ValueError
        return int(text)
    except ValueError:
        raise _Refused(400, f"{name} is an integer, not {text[:40]!r}") from None


# Libraries of object stores retry for minutes; a browser has six connections to TensorBoard,
# which its other tabs need, too.
ANSWER_S = 15.0
# A page of several long runs takes its time to make.
EXPORT_S = 60.0
# Whether the log directory exists is not worth waiting for.
LOOK_S = 1.0
# Overdue requests that may wait for the same work; further ones are refused at once.
MOST_OVERDUE = 2

T = TypeVar("T")


class NoAnswer(Exception):
    """No answer in time; the message says in one line what to do."""


class Deadline:
    """Work on threads of its own, awaited up to a time limit; thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._overdue: Counter[str] = Counter()

    def ask(self, key: str, work: Callable[[], T], limit_s: float) -> T:
        """Return or raise what `work` does, on a thread of its own.

        Args:
            key: names what it waits for: of one key, few overdue requests may wait at a time.
            limit_s: seconds to wait.

        Raises:
            NoAnswer: it takes longer, or too many requests of this key do.
        """
        if self._overdue[key] >= MOST_OVERDUE:
            raise NoAnswer(_MESSAGE)
        outcome = daemon.begin(work, "gpu-util-request")
        try:
            return outcome.result(limit_s)
        except TimeoutError:
            if outcome.done():
                raise
        self._count_overdue(key, 1)
        outcome.add_done_callback(lambda _: self._count_overdue(key, -1))
        raise NoAnswer(_MESSAGE)

    def _count_overdue(self, key: str, more: int) -> None:
        with self._lock:
            self._overdue[key] += more

    def stream(self, key: str, lines: Iterator[str]) -> Iterator[str]:
        """Yield the lines of a download; where one takes too long, a last line that says so.

        Raises:
            NoAnswer: after that, so that the partial download does not look complete.
        """
        while True:
            try:
                line = self.ask(key, lambda: next(lines, None), ANSWER_S)
            except NoAnswer as late:
                yield f"# incomplete: {late}\n"
                raise
            if line is None:
                return
            yield line


_MESSAGE = (
    "the disk or store that holds this recording does not answer: see that it is mounted, or that "
    "the machine TensorBoard runs on is online and logged in there"
)
