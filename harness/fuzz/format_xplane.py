"""XSpace files: messages taken apart by their schema, changed field by field, and written again."""

from __future__ import annotations

import gzip
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

from harness.fuzz import mutate, traces
from harness.fuzz.fuzzer import Format

# Fields that are messages, by the message they stand in.
_MESSAGES = {
    "space": {1: "plane"},
    "plane": {3: "line", 4: "event entry", 5: "stat entry", 6: "stat"},
    "line": {4: "event"},
    "event": {4: "stat"},
    "event entry": {2: "event metadata"},
    "stat entry": {2: "stat metadata"},
    "event metadata": {5: "stat"},
    "stat": {},
    "stat metadata": {},
}
_EVENTS = 12  # of each line of a public trace, in a seed
_LINES = 6


@dataclass
class Node:
    """One field of a message: its number, its wire type, and a number, bytes or fields."""

    number: int
    wire: int
    value: int | bytes | list[Node]
    lie: int = 0  # added to the length that is written
    padding: int = 0  # bytes by which numbers are longer than they need to be

    def copy(self) -> Node:
        value = [node.copy() for node in self.value] if isinstance(self.value, list) else self.value
        return Node(self.number, self.wire, value, self.lie, self.padding)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def parse(data: bytes, kind: str) -> list[Node]:
    """The fields of a sound message."""
    nodes, at = [], 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            nodes.append(Node(number, wire, value))
        elif wire == 2:
            length, at = _varint(data, at)
            inner = _MESSAGES[kind].get(number)
            payload = data[at : at + length]
            nodes.append(Node(number, wire, parse(payload, inner) if inner else payload))
            at += length
        else:
            size = 8 if wire == 1 else 4
            nodes.append(Node(number, wire, int.from_bytes(data[at : at + size], "little")))
            at += size
    return nodes


def _number(value: int, padding: int = 0) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 128
        out += b"\x80" * (padding - 1) + b"\0"
    return bytes(out)


def write(nodes: list[Node]) -> bytes:
    out = bytearray()
    for node in nodes:
        out += _number(node.number << 3 | node.wire & 7)
        value = node.value
        if isinstance(value, list):
            value = write(value)
        if isinstance(value, bytes):
            out += _number(len(value) + node.lie, node.padding) + value
        elif node.wire == 1:
            out += (value & ((1 << 64) - 1)).to_bytes(8, "little")
        elif node.wire == 5:
            out += (value & ((1 << 32) - 1)).to_bytes(4, "little")
        else:
            out += _number(value, node.padding)
    return bytes(out)


def _places(nodes: list[Node], found: list[tuple[list[Node], int]]) -> list:
    for index, node in enumerate(nodes):
        found.append((nodes, index))
        if isinstance(node.value, list):
            _places(node.value, found)
    return found


def _change(random: Random, nodes: list[Node]) -> None:
    places = _places(nodes, [])
    if not places:
        nodes.append(Node(1, 2, b""))
        return
    inside, index = random.choice(places)
    node = inside[index]
    choice = random.randrange(14)
    if choice == 0:
        del inside[index]
    elif choice == 1:
        times = random.choice((1, 1, 3, 30, 300))
        inside[index:index] = [node.copy() for _ in range(times)]
    elif choice == 2:
        node.number = random.choice((0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 15, 16, 200, 2047, 1 << 28))
    elif choice == 3:
        node.wire = random.randrange(8)
        if not isinstance(node.value, int) and node.wire != 2:
            node.value = random.choice(mutate.INTEGERS)
    elif choice == 4:
        node.lie = random.choice((-2, -1, 1, 2, 100, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1))
    elif choice == 5:
        node.padding = random.choice((1, 2, 5, 9, 10))
    elif choice == 6:
        other, at = random.choice(places)
        inside.insert(index, other[at].copy())
    elif choice == 7:  # empties, by the hundred
        number = random.choice((node.number, 3, 4, 5, 6))
        inside[index:index] = [Node(number, 2, b"") for _ in range(random.choice((1, 70, 2000)))]
    elif choice == 8:  # numbers packed where single ones belong
        packed = b"".join(_number(random.choice(mutate.INTEGERS)) for _ in range(5))
        inside.insert(index, Node(node.number, 2, packed))
    elif choice == 9:
        random.shuffle(inside)
    elif isinstance(node.value, int):
        node.value = int(mutate.number(random)) if random.random() < 0.8 else random.getrandbits(64)
    elif isinstance(node.value, bytes):
        text = random.choice((*mutate.TEXTS, *mutate.LITERALS, *_NAMES))
        node.value = random.choice(
            (
                text.encode("utf-8", "replace"),
                mutate.of_bytes(random, node.value),
                b"\xff\xfe",
                b"",
                _details(random).encode(),
            )
        )
    else:
        node.value = mutate.of_bytes(random, write(node.value))


_NAMES = (
    "/device:GPU:0",
    "/device:GPU:99999999999999999999",
    "/device:GPU:5000",
    "/host:CPU",
    "train",
    "Task Environment",
    "step_num",
    "_r",
    "correlation_id",
    "kernel_details",
    "memcpy_details",
    "allocator_name",
    "bytes_allocated",
    "fragmentation",
    "theoretical_occupancy_pct",
    "tf_op",
    "hlo_op",
    "GPU_0_bfc",
    "GPU_99999_bfc",
    "MemoryAllocation",
    "IteratorGetNext",
    "Steps",
    "Iterator::Root::Map",
    "PjitFunction(f)",
    "core_count",
    "memory_size",
    "profile_start_time",
)


def _details(random: Random) -> str:
    """The texts inside kernels' and copies' stats, with other numbers."""
    keys = (
        "regs",
        "static_shared",
        "dynamic_shared",
        "shm",
        "grid",
        "block",
        "occ_pct",
        "size",
        "kind_src",
        "kind_dst",
        "dest",
    )
    values = (*mutate.LITERALS, *map(str, mutate.INTEGERS), "1,2,3", "0,0,0", "²,1,1", "device")
    words = (f"{random.choice(keys)}:{random.choice(values)}" for _ in range(random.randrange(6)))
    return " ".join(words)


def _made() -> bytes:
    """A training on one GPU: steps, launches, copies, an allocator, a pipeline."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
    from xspace_builder import Gpu, Space

    space = Space()
    python = space.host.line("python", 1)
    gpu = Gpu(space, 0, space.host.line("tf_Compute/1", 2))
    for step in range(3):
        at = 1000.0 * step
        python.event("train", at, 900, step_num=step, _r=1)
        python.event("IteratorGetNext::DoCompute", at + 1, 300)
        python.event("Iterator::Root::Map", at + 2, 200, id=step)
        python.event("model/dense/MatMul:MatMul", at + 310, 40)
        python.event(
            "MemoryAllocation",
            at + 320,
            0,
            allocator_name="GPU_0_bfc",
            bytes_allocated=1 << 20,
            peak_bytes_in_use=1 << 21,
            fragmentation=0.25,
        )
        gpu.launch("ampere_sgemm_128x64_tn", at + 400, at + 420, 300, tf_op="a/b:MatMul")
        gpu.copy("H2D", at + 730, at + 740, 50, size=4096)
    return space.bytes()


@cache
def _seeds() -> list[list[Node]]:
    seeds = [parse(_made(), "space")]
    for path in traces.references("xplane/*.xplane.pb"):
        planes = parse(path.read_bytes(), "space")
        for plane in planes:
            if plane.number == 1 and isinstance(plane.value, list):
                plane.value = _fewer(plane.value)
        kept = [p for p in planes if p.number != 1 or isinstance(p.value, list)]
        seeds += [[node] for node in kept if node.number == 1] + [kept[:4]]
    return [seed for seed in seeds if 40 < len(write(seed)) < 20_000]


def _fewer(plane: list[Node]) -> list[Node]:
    """A plane with some of its lines and events, and the names of those alone."""
    lines = [node for node in plane if node.number == 3][:_LINES]
    used: set[int] = set()
    for line in lines:
        events = [node for node in line.value if node.number == 4][:_EVENTS]
        line.value = [node for node in line.value if node.number != 4] + events
        used |= {part.value for event in events for part in event.value if part.number == 1}
    names = [
        node
        for node in plane
        if node.number == 4 and any(part.number == 1 and part.value in used for part in node.value)
    ]
    stats = [node for node in plane if node.number == 5][:40]
    rest = [node for node in plane if node.number not in (3, 4, 5)]
    return rest + lines + names + stats


def make(random: Random) -> bytes:
    seeds = _seeds()
    seed = seeds[0] if random.random() < 0.4 else random.choice(seeds)
    nodes = [node.copy() for node in seed]
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        _change(random, nodes)
    data = write(nodes)
    if random.random() < 0.15:
        data = mutate.of_bytes(random, data)
    return gzip.compress(data, 1, mtime=0) if random.random() < 0.02 else data


def _prepare() -> None:
    traces.prepare()
    _seeds()


FORMAT = Format(
    "xplane",
    make,
    partial(traces.check, suffix=".xplane.pb"),
    judge=partial(traces.judge, suffix=".xplane.pb"),
    prepare=_prepare,
)
