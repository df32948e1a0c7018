"""Chrome traces of PyTorch: changed trees of JSON, and their bytes."""

from __future__ import annotations

import gzip
import json
from functools import cache, partial
from random import Random
from typing import Any

from harness.fuzz import mutate, traces
from harness.fuzz.fuzzer import Format

_EVENTS = 25  # of a public trace, in a seed


def _torch() -> dict[str, Any]:
    events: list[dict] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}},
        {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "tid": 0,
            "ts": 30.5,
            "s": "t",
            "args": {"Total Reserved": 4096, "Total Allocated": 512, "Device Id": 0, "Device Type": 1, "Bytes": 512},
        },
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1000.125},
    ]
    for number in range(3):
        events += _torch_step(number)
    device = {"id": 0, "name": "V100", "totalGlobalMem": 16 << 30, "computeMajor": 7, "computeMinor": 0, "numSms": 80}
    return {
        "schemaVersion": 1,
        "deviceProperties": [device],
        "distributedInfo": {"rank": 1},
        "traceEvents": events,
        "baseTimeNanoseconds": 1 << 60,
    }


def _torch_step(number: int) -> list[dict]:
    """One step: a fetch, a launch and its kernel, a copy."""
    at = 100.5 + 200 * number
    host = {"ph": "X", "pid": 1, "tid": 2}
    gpu = {"device": 0, "stream": 7, "correlation": number + 1, "External id": number + 10}
    shape = {
        "registers per thread": 40,
        "shared memory": 512,
        "blocks per SM": 1.5,
        "grid": [64, 1, 1],
        "block": [256, 1, 1],
        "est. achieved occupancy %": 50,
    }
    return [
        host | {"cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 150.25, "args": {}},
        host
        | {
            "cat": "user_annotation",
            "ts": at + 1,
            "dur": 40,
            "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        },
        host | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 50, "dur": 20, "args": {"External id": number + 10}},
        host
        | {
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": at + 55,
            "dur": 5,
            "args": {"correlation": number + 1, "External id": number + 10},
        },
        host | {"cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": at + 100, "dur": 30},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "volta_sgemm_128x64_tn",
            "pid": 0,
            "tid": 7,
            "ts": at + 70,
            "dur": 30.125,
            "args": gpu | shape,
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pageable -> Device)",
            "pid": 0,
            "tid": 7,
            "ts": at + 60,
            "dur": 3,
            "args": gpu | {"bytes": 4096},
        },
    ]


@cache
def _seeds() -> list[str]:
    trees = [_torch()]
    for path in traces.references("kineto/unit/*.json", "kineto/*.json.gz"):
        raw = path.read_bytes()
        tree = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        tree = tree if isinstance(tree, dict) else {"traceEvents": tree}
        events = tree.get("traceEvents", [])
        small = {key: value for key, value in tree.items() if len(json.dumps(value)) < 3000}
        for first in {0, len(events) // 3, len(events) // 2}:
            trees.append(small | {"traceEvents": events[first : first + _EVENTS]})
    return [json.dumps(tree) for tree in trees]


def make(random: Random) -> bytes:
    seeds = _seeds()
    tree = json.loads(seeds[0] if random.random() < 0.5 else random.choice(seeds))
    if random.random() < 0.85:
        tree = mutate.tree(random, tree)
    else:
        _fields(random, tree)
    text = mutate.write(tree)
    data = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.15:
        data = mutate.of_bytes(random, data)
    return gzip.compress(data, 1, mtime=0) if random.random() < 0.02 else data


def _fields(random: Random, tree: Any) -> None:
    """The same number into one field of all events: a device, a time, a process."""
    events = tree.get("traceEvents") if isinstance(tree, dict) else None
    if not events:
        return
    field = random.choice(("ts", "dur", "pid", "tid", "device", "stream", "correlation", "name"))
    value, rising = mutate.leaf(random), random.random() < 0.5
    for number, event in enumerate(events):
        if isinstance(value, int | float) and rising:
            value = value + random.choice((1, number, 1000))
        inside = event if field in event else event.get("args")
        if isinstance(inside, dict) and random.random() < 0.9:
            inside[field] = value


def _prepare() -> None:
    traces.prepare()
    _seeds()


FORMAT = Format(
    "kineto", make, partial(traces.check, suffix=".json"), judge=partial(traces.judge, suffix=".json"), prepare=_prepare
)
