"""Log directories of a good recording next to a spoiled one, as recipes of what was changed."""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from harness.fuzz import mutate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

FOLDER = "20260101T000000.000Z-vm-0-1"
PLACE = Path("plugins/gpu_utilization")
# Name -> (scenario, options) of the recordings that are spoiled.
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "thirds": ("thirds", {"steps": 90, "gpus": 2}),
    "stalls": ("host_stall", {"steps": 60, "gpus": 1, "windows": [(4, 8)]}),
    "minutes": ("slow", {"steps": 60, "gpus": 1, "step_ms": 4000.0, "flushes": 6}),
    "live": ("healthy", {"steps": 40, "gpus": 0, "close": False}),
}
INDEX = "index.json"
# Names that lead elsewhere, or stand for something.
NAMES = (
    "manifest.json",
    "top.npz",
    "segment-000000.npz",
    "segment-000001.npz",
    "segment-000000-000003.npz",
    "segment-999999999.npz",
    "top-000000-000001.npz",
    ".manifest.json.tmp",
    "\udce9",
    "é",
)
HEADERS = (
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f2', 'fortran_order': True, 'shape': (3, 4), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1L, 2L), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (999999999999999, 0), }",
    "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': " + "(" * 300,
    "__import__('os')",
    "\\x00 'unterminated",
)


class _Bases:
    """The files of each base, made once: name -> {file: bytes}."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}

    def prepare(self) -> None:
        if not self.files:
            self.files = {name: _made(*about) for name, about in BASES.items()}


bases = _Bases()


def _made(scenario: str, options: dict[str, Any]) -> dict[str, bytes]:
    """The files of a recording; the same ones each time."""
    from make_recording import SyntheticRun
    from scripted_runs import ScriptedTime

    options = dict(options)
    flushes, close = options.pop("flushes", 1), options.pop("close", True)
    time = ScriptedTime()
    with tempfile.TemporaryDirectory() as folder:
        run = SyntheticRun(folder, scenario, scalars=False, clock=time.clock(), past_s=600, **options)
        for _ in range(flushes):
            run.advance(run.total // flushes)
            time.advance(61)
        if close:
            run.close()
        files = {path.name: path.read_bytes() for path in sorted(run.path.iterdir())}
    manifest = json.loads(files["manifest.json"])
    # What this process is called here and now.
    known = {
        "folder": FOLDER,
        "host": "vm",
        "pid": 1,
        "boot_id": None,
        "pid_namespace": None,
        "process_started": None,
        "heartbeat_wall_ns": manifest["heartbeat_ns"],
    }
    files["manifest.json"] = json.dumps({**manifest, **known}).encode()
    return files


def write(files: dict[str, bytes], run: Path) -> Path:
    """Put a recording's files into a run's directory; returns the recording's."""
    folder = run / PLACE / FOLDER
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


# --- recipes --------------------------------------------------------------------------------------


def recipe(random: Random) -> bytes:
    """What to change: `{"base": name, "changes": [[what, …], …]}`."""
    bases.prepare()
    base = random.choice(list(BASES))
    files = bases.files[base]
    changes = [_change(random, files) for _ in range(random.choice((1, 1, 1, 2, 3, 6)))]
    return json.dumps({"base": base, "changes": changes}, separators=(",", ":")).encode()


def _change(random: Random, files: dict[str, bytes]) -> list[Any]:
    containers = [name for name in files if name.endswith(".npz")]
    kind = random.choices(("manifest", "index", "cells", "member", "bytes", "file"), (40, 20, 15, 8, 7, 10))[0]
    if kind == "manifest" or not containers:
        return ["json", "manifest.json", *_edit(random, json.loads(files["manifest.json"]))]
    name = random.choice(containers)
    with zipfile.ZipFile(io.BytesIO(files[name])) as archive:
        members = [one for one in archive.namelist() if one != INDEX]
        index = json.loads(archive.read(INDEX))
        sizes = {one: archive.getinfo(one).file_size for one in members}
    if (kind == "index" and index) or not members:
        return ["json", name, *_edit(random, index)]
    member = random.choice(members)
    if kind == "cells":
        at, value = random.random(), random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        return ["cells", name, member, at, random.choice((1, 1, 2, 8, 4000)), value]
    if kind == "member":
        what = random.choice(("drop", "double", "rename", "header", "bomb", "cut", "grow"))
        more = {
            "header": random.randrange(len(HEADERS)),
            "cut": random.randrange(sizes[member]),
            "rename": random.choice(members),
        }
        return ["member", name, member, what, more.get(what)]
    if kind == "bytes":
        return ["bytes", random.choice(list(files)), random.randrange(1 << 30)]
    what = random.choice(("drop", "cut", "rename", "copy", "link", "loop", "pipe", "folder", "big"))
    return ["file", random.choice(list(files)), what, random.choice(NAMES), random.random()]


def _edit(random: Random, tree: Any) -> list[Any]:
    """[path, JSON text to put there; null = leave it out]."""
    places = [path for path in _paths(tree) if path]
    path = random.choice(places)
    old = tree
    for key in path:
        old = old[key]
    match random.randrange(8):
        case 0:
            return [path, None]
        case 1:
            wrapped = random.choice(([old], {"a": old}, str(old)[:50]))
            return [path, json.dumps(wrapped)[:400] if len(json.dumps(wrapped)) < 400 else "[]"]
        case 2 if isinstance(old, int | float):
            factor = random.choice((-1, 2, 1000, 10**6, 10**12, 0.001))
            return [path, json.dumps(old * factor)]
        case 3 if isinstance(old, list):
            return [path, json.dumps((old * random.choice((2, 3, 40)))[:400])[:100_000]]
    return [path, mutate.write(mutate.leaf(random))[:600]]


def _paths(tree: Any, at: tuple = ()) -> list[list[Any]]:
    found = [list(at)]
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += _paths(value, (*at, key))
    return found


def spoiled(data: bytes, logdir: Path) -> str:
    """Make the log directory of a recipe: the runs "good" and "spoiled".

    Returns: the base's name. Raises: ValueError, KeyError and their like where it is no recipe.
    """
    bases.prepare()
    told = json.loads(data)
    base, changes = told["base"], told["changes"]
    files = dict(bases.files[base])
    write(bases.files["thirds"], logdir / "good")
    on_disk = []
    for what, *more in changes:
        if what == "file":
            on_disk.append(more)
        elif more[0] in files:
            files[more[0]] = _CHANGES[what](files[more[0]], *more)
    folder = write(files, logdir / "spoiled")
    for one in on_disk:
        _change_file(folder, *one)
    return base


def _change_json(data: bytes, name: str, path: list[Any], text: str | None) -> bytes:
    if name.endswith(".npz"):
        members = _members(data)
        if INDEX not in members:
            return data
        members[INDEX] = _edited(members[INDEX], path, text)
        return _zipped(members)
    return _edited(data, path, text)


def _edited(data: bytes, path: list[Any], text: str | None) -> bytes:
    tree = json.loads(data)
    inside = tree
    try:
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]]  # it is there
    except (KeyError, IndexError, TypeError):
        return data  # an earlier change took it away
    if text is None:
        del inside[path[-1]]
    else:
        inside[path[-1]] = mutate.Literal(text)
    return mutate.write(tree).encode("utf-8", "surrogatepass")


def _change_cells(data: bytes, name: str, member: str, at: float, count: int, value: int) -> bytes:
    members = _members(data)
    if member not in members:
        return data
    body = bytearray(members[member])
    head = 10 + int.from_bytes(body[8:10], "little")
    first = head + int(at * max(0, len(body) - head))
    body[first : first + count] = bytes([value]) * len(body[first : first + count])
    return _zipped({**members, member: bytes(body)})


def _change_member(data: bytes, name: str, member: str, what: str, more: Any) -> bytes:
    members = _members(data)
    if member not in members:
        return data
    body = members[member]
    match what:
        case "drop":
            del members[member]
        case "double":
            return _zipped(members, again=member)
        case "rename":
            members[more] = members.pop(member)
        case "header":
            text = HEADERS[more].encode()
            members[member] = body[:8] + len(text).to_bytes(2, "little") + text + body[128:]
        case "cut":
            members[member] = body[:more]
        case "grow":
            members[member] = body + bytes(8_000_000)
        case "bomb":
            return _bomb(members, member)
    return _zipped(members)


def _bomb(members: dict[str, bytes], member: str) -> bytes:
    """A member that says it is small, and inflates to 256 MB."""
    size, packed = len(members[member]), _zeros()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, body in members.items():
            archive.writestr(zipfile.ZipInfo(name), packed if name == member else body)
        entry, directory = archive.getinfo(member), archive.start_dir
    data = bytearray(out.getvalue())
    central = data.index(b"PK\x01\x02", directory)
    while data[central + 46 :][: len(member)] != member.encode():
        central = data.index(b"PK\x01\x02", central + 4)
    for at in (entry.header_offset + 8, central + 10):  # method, …, packed and unpacked size
        data[at : at + 2] = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
        data[at + 14 : at + 18] = size.to_bytes(4, "little")
    return bytes(data)


@cache
def _zeros() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(256)]
    return b"".join([*parts, packer.flush()])


def _change_bytes(data: bytes, name: str, seed: int) -> bytes:
    return mutate.of_bytes(Random(seed), data)


_CHANGES = {"json": _change_json, "cells": _change_cells, "member": _change_member, "bytes": _change_bytes}


def _change_file(folder: Path, name: str, what: str, other: str, at: float) -> None:
    path, to = folder / name, folder / other
    data = path.read_bytes() if path.is_file() else b""
    if not path.is_file() or path.is_symlink():
        return  # an earlier change made something else of it
    if what in ("drop", "link", "loop", "pipe", "folder", "rename"):
        path.unlink()
    match what:
        case "cut":
            path.write_bytes(data[: int(at * len(data))])
        case "rename" | "copy":
            if not to.exists() or (to.is_file() and not to.is_symlink()):
                to.unlink(missing_ok=True)
                to.write_bytes(data)
        case "link":  # to the same, outside of the log directory
            outside = folder.parents[4] / f"outside-{name}"
            outside.write_bytes(data)
            path.symlink_to(outside)
        case "loop":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "big":
            with path.open("ab") as file:
                file.truncate(40 << 20)


def _members(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {one.filename: _member(archive, one) for one in archive.infolist()}
    except Exception:  # an earlier change broke it
        return {}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """What a member holds, and no more than it says: it may be a bomb."""
    with archive.open(info) as stream:
        return stream.read(info.file_size)


def _zipped(members: dict[str, bytes], again: str | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, body)
        if again is not None:
            import warnings

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                archive.writestr(again, members[again])
    return out.getvalue()


def scratch(name: str) -> Path:
    """A folder that lives as long as this process."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=base))
    own = os.getpid()

    def remove() -> None:
        if os.getpid() == own:  # not in a child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def same_rows(one: Any, expected: dict[str, np.ndarray]) -> bool:
    """Whether a table holds the rows that it should."""
    return one.keys() == expected.keys() and all((one[name] == values).all() for name, values in expected.items())
