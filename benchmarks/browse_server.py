"""The plugin's routes without a server around them, timed; `browse_cost.py` runs this as a process.

python benchmarks/browse_server.py LOGDIR prints the times of a first view and of zooms at
every level and both axes as JSON.
"""

import gc
import gzip
import json
import random
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "harness" / "support"), str(ROOT)]

from plugin_app import PluginApp  # noqa: E402

LANES, BUCKETS = 16, 2048
ZOOMS_PER_LEVEL = 4
# Nobody zooms before the first view is drawn.
LOOKS_S = 0.3


@dataclass
class Answer:
    """One reply: its status, its body as sent, and the time it took."""

    status: int
    body: bytes
    wall_ms: float
    cpu_ms: float  # of the whole process
    thread_ms: float  # of the thread that answered


class Served:
    """The plugin over a log directory, with every folder in it as a run."""

    def __init__(self, logdir: Path):
        self._app = PluginApp(logdir)

    def get(self, route: str, **query: object) -> Answer:
        text = "&".join(f"{name}={quote(str(value), safe=',')}" for name, value in query.items())
        wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
        reply = self._app.ask(f"{route}?{text}", headers={"Accept-Encoding": "gzip"})
        body = reply.get_data()
        return Answer(
            reply.status_code,
            body,
            1e3 * (time.perf_counter() - wall),
            1e3 * (time.process_time() - cpu),
            1e3 * (time.thread_time() - thread),
        )

    def json(self, route: str, **query: object) -> tuple[dict, Answer]:
        answer = self.get(route, **query)
        return json.loads(gzip.decompress(answer.body)), answer


def header(tile: bytes) -> dict:
    data = gzip.decompress(tile)
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length])


def quantiles(values: list[float]) -> dict[str, float]:
    values = sorted(values) or [0.0]
    return {"p50": values[len(values) // 2], "p95": values[int(0.95 * (len(values) - 1))], "max": values[-1]}


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 2**20


def sixteen(lanes: list[dict]) -> str:
    """The lanes a person sees first: of training, then each GPU's first ones."""
    ids = [lane["id"] for lane in lanes if lane["group"] == "training"]
    per_gpu: dict[str, int] = {}
    for lane in lanes:
        group = lane["group"]
        if group.startswith("gpu") and per_gpu.get(group, 0) < 2 and len(ids) < LANES:
            per_gpu[group] = per_gpu.get(group, 0) + 1
            ids.append(lane["id"])
    return ",".join(ids)


def measure(logdir: Path) -> dict:
    served = Served(logdir)
    served.get("/runs")
    gc.collect()
    before = resident_mb()
    listing, _ = served.json("/runs")
    id = listing["recordings"][0]["id"]
    reply, about = served.json("/recording", id=id)
    lanes = sixteen(reply["lanes"])
    extent = reply["extent"]
    lengths = {"step": extent["last_step"] + 1, "time": extent["end_ns"] - extent["start_ns"]}

    def tile(axis: str, level: int, first: int, count: int = BUCKETS) -> Answer:
        answer = served.get("/tiles", id=id, axis=axis, level=level, first=first, count=count, lanes=lanes)
        assert answer.status == 200, answer.body
        return answer

    def whole(axis: str) -> int:
        return max(0, (lengths[axis] // BUCKETS).bit_length())

    first = tile("step", whole("step"), 0)
    time.sleep(LOOKS_S)
    random_ = random.Random(1)
    views = [
        (axis, level, random_.randrange(max(1, (lengths[axis] >> level) - BUCKETS + 1)))
        for axis, finest in (("step", 0), ("time", 20))
        for level in range(finest, whole(axis) + 1)
        for _ in range(ZOOMS_PER_LEVEL)
    ]
    random_.shuffle(views)
    zoom: list[float] = []
    cpu: list[float] = []
    then: list[float] = []
    highest = resident_mb()
    for view in views:
        answer = tile(*view)
        zoom.append(answer.wall_ms)
        cpu.append(answer.thread_ms)
        began = time.perf_counter()
        refining = header(answer.body)["refining"]
        while refining:
            time.sleep(0.03)
            refining = header(tile(*view).body)["refining"]
            if not refining:
                then.append(answer.wall_ms + 1e3 * (time.perf_counter() - began))
        highest = max(highest, resident_mb())
    return {
        "first_ms": about.wall_ms + first.wall_ms,
        "first_cpu_ms": about.thread_ms + first.thread_ms,
        "zoom_ms": quantiles(zoom),
        "zoom_cpu_ms": quantiles(cpu),
        "then_ms": quantiles(then),
        "refined": len(then) / len(zoom),
        "rss_mb": highest - before,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
