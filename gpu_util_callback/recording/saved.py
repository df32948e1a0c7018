"""State of bounded sums as JSON and a few arrays: what their classes declare, restored type by type.

An object's state is the attributes that its class annotates; others are made anew. Reading trusts
no type, size or place that a file claims; values of a whole file are believed, but for what an object's
`check` refuses.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from math import prod
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from gpu_util_callback.recording.container import Container, Damaged
from gpu_util_callback.recording.fold import REDUCTIONS, Fold
from gpu_util_callback.recording.manifest_facts import encodable

_Sums = TypeVar("_Sums")
# Arrays of a kind are stored end to end as one member, byte planes apart: these compress well.
_SIZES = {np.dtype(kind).str: np.dtype(kind).itemsize for kind in (np.int64, np.float64, np.float32)}
MOST_CELLS = 8192
_PLAIN = (Fold, np.ndarray)
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@cache
def _made_of(kind: Any) -> tuple[Any, list[Any]]:
    """Return the origin and the parts of a declared type, but for None."""
    return get_origin(kind), [part for part in get_args(kind) if part is not NoneType]


def save(sums: object, prefix: str) -> dict[str, np.ndarray]:
    """Return copies of all that `load` needs to make the same sums again, by the names of a container's members.

    These are `<prefix>state`, JSON with each array's place, and a member for the arrays of each type.
    """
    arrays: dict[str, list[np.ndarray]] = {kind: [] for kind in _SIZES}
    kind = type(sums)
    versions = {part.__qualname__: _version(part) for part in kind.__mro__ if hasattr(part, "VERSION")}
    state = json.dumps([versions, _stored(kind, sums, arrays)], separators=(",", ":")).encode()
    return {f"{prefix}state": np.frombuffer(state, np.uint8)} | {
        f"{prefix}{kind}": np.concatenate(parts).view(np.uint8).reshape(-1, _SIZES[kind]).T.copy()
        for kind, parts in arrays.items()
        if parts
    }


def load(kind: type[_Sums], container: Container, prefix: str) -> _Sums | None:
    """Return the sums that `save` stored, of their class or one that it was made of.

    Returns: None where there are none, or those of another version: of classes that declare other attributes,
        or have another `VERSION`.
    Raises: Damaged.
    """
    if f"{prefix}state" not in container.names:
        return None
    try:
        versions, state = json.loads(container.array(f"{prefix}state").tobytes())
        if versions.get(kind.__qualname__) != _version(kind):
            return None
        return _restored(kind, state, _Arrays(container, prefix).take)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"no sums: {str(error)[:100]!r}") from error


def _version(kind: Any) -> str:
    """Return what changes with how a class sums up, and with what it or one of those it holds declares."""
    return f"{kind.VERSION}-{_declared(kind):08x}"


@cache
def _declared(kind: Any) -> int:
    """Return a checksum of the names that a class, and the classes it declares, declare."""
    names: dict[str, list[str]] = {}
    ahead = [kind]
    while ahead:
        part = ahead.pop()
        ahead += get_args(part)
        if isinstance(part, type) and part.__qualname__ not in names and part not in _PLAIN and _hints(part):
            names[part.__qualname__] = list(_hints(part))
            ahead += _hints(part).values()
    return zlib.crc32(repr(sorted(names.items())).encode())


class _Arrays:
    """The arrays of one object, each of which belongs to one of its values."""

    def __init__(self, container: Container, prefix: str):
        self._container, self._prefix = container, prefix
        self._flat: dict[str, np.ndarray] = {}
        self._left: dict[str, int] = {}  # values that may still be taken

    def take(self, kind: str, at: int, shape: list[int]) -> np.ndarray:
        """Return an array. Raises: Damaged, KeyError.

        Args:
            kind: its type, a key of `_SIZES`.
            at: place of its first value among all of this type.
        """
        if kind not in self._flat:
            planes = self._container.array(f"{self._prefix}{kind}")
            if planes.dtype != np.uint8 or planes.ndim != 2 or len(planes) != _SIZES[kind]:
                raise Damaged("sums: planes of another kind")
            self._flat[kind] = planes.T.copy().view(kind).ravel()
            self._left[kind] = len(self._flat[kind])
        length = prod(shape)
        self._left[kind] -= length  # a file must not claim one value many times
        if at < 0 or min(shape) < 0 or self._left[kind] < 0 or at + length > len(self._flat[kind]):
            raise Damaged("sums: an array is missing")
        return self._flat[kind][at : at + length].reshape(shape).copy()


def _placed(array: np.ndarray, arrays: dict[str, list[np.ndarray]]) -> int:
    """Add an array to those of its kind; return its place among their values."""
    parts = arrays[array.dtype.str]
    place = sum(map(len, parts))
    parts.append(array.ravel())
    return place


def _stored(kind: Any, value: Any, arrays: dict[str, list[np.ndarray]]) -> Any:
    """Return JSON for a value of a declared kind; its arrays are added to those of their type.

    Args:
        arrays: type -> the arrays of it so far.
    """
    origin, args = _made_of(kind)
    if value is None or kind in (int, float, str, bool):
        return value
    if origin is UnionType:
        return _stored(args[0], value, arrays)
    if kind is np.ndarray:
        if value.dtype == object:  # texts: a dictionary of words, and their numbers
            words, codes = np.unique(value.astype(str), return_inverse=True)
            return [*_stored(kind, codes.astype(np.int64), arrays), words.tolist()]
        return [value.dtype.str, _placed(value, arrays), list(value.shape)]
    if kind is Fold:
        parts = {part: (columns, value.matrix(part)) for part in REDUCTIONS if (columns := value.columns(part))}
        cells = value.cells_with_rows()
        # of a short run's samples, most cells are empty
        sparse = [cells.tolist()] if 2 * len(cells) < value.used else []
        stored = cells if sparse else slice(None)
        places = {part: [columns, _placed(matrix[:, stored], arrays)] for part, (columns, matrix) in parts.items()}
        return [value.size, value.width, value.first, value.used, places, *sparse]
    if origin is set:
        return _stored(np.ndarray, np.array(sorted(value), np.int64), arrays)
    if origin is tuple:
        return [_stored(part, item, arrays) for part, item in zip(args, value, strict=True)]
    if origin is dict:
        return [[_stored(args[0], key, arrays), _stored(args[1], item, arrays)] for key, item in value.items()]
    return {name: _stored(part, getattr(value, name), arrays) for name, part in _hints(kind).items()}


Take = Callable[[str, int, list[int]], np.ndarray]


def _restored(kind: Any, stored: Any, take: Take) -> Any:
    """Return the value of a declared kind from its JSON, the inverse of `_stored`.

    Args:
        take: as `_Arrays.take`.

    Raises: Damaged, or what a wrong type raises.
    """
    if kind in (int, float, str, bool):
        return _restored_scalar(kind, stored)
    if kind is np.ndarray:
        array = take(*stored[:3])
        return _texts(array, *stored[3:]) if stored[3:] else array
    if kind is Fold:
        return _fold(stored, take)
    origin, args = _made_of(kind)
    if origin is UnionType:
        return None if stored is None else _restored(args[0], stored, take)
    if origin is set:
        return set(take(*stored).tolist())
    if origin is tuple:
        return tuple(_restored(part, item, take) for part, item in zip(args, stored, strict=True))
    if origin is dict:
        return {_restored(args[0], key, take): _restored(args[1], item, take) for key, item in stored}
    values = {name: _restored(part, stored[name], take) for name, part in _hints(kind).items()}
    sums: Any = kind(**values) if is_dataclass(kind) else kind()  # type: ignore[operator]
    for name in () if is_dataclass(kind) else values:
        setattr(sums, name, values[name])
    if hasattr(sums, "check"):
        sums.check()
    return sums


def _restored_scalar(kind: Any, stored: Any) -> Any:
    """Return a number, a flag or a text from its JSON, in which a float may be written as an int. Raises: Damaged."""
    if kind is float and type(stored) is int:
        return float(stored)
    if type(stored) is not kind:
        raise Damaged(f"sums: {str(stored)[:40]!r} is no {kind.__name__}")
    if kind is int and not -(2**63) <= stored < 2**63:
        raise Damaged("sums: a number of more than 64 bits")
    return encodable(stored) if kind is str else stored


def _texts(codes: np.ndarray, words: list[str]) -> np.ndarray:
    """Return the texts (object[n]) that `codes` number among `words`. Raises: Damaged."""
    words_array = np.empty(len(words), object)
    words_array[:] = [_restored_scalar(str, word) for word in words]
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(words):
        raise Damaged("sums: a word is missing")
    return words_array[codes]


def _fold(stored: list[Any], take: Take) -> Fold:
    """Return a fold as stored, of all cells or of those with rows. Raises: Damaged if it claims what none has.

    Args:
        stored: size, width, first cell, cells in use, {part: [columns, place]}, and the cells with rows if not all.
    """
    size, width, first, used, parts, *sparse = stored
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (size, width, used, first or 0)):
        raise Damaged("sums: cells without a number")
    is_possible = 0 < size <= MOST_CELLS and size % 2 == 0 and width and used <= size
    if not is_possible or (first is None and used):
        raise Damaged("sums: impossible cells")
    cells = np.array(sparse[0]) if sparse else None
    if cells is not None and len(cells) and not (cells.dtype == np.int64 and 0 <= cells.min() <= cells.max() < used):
        raise Damaged("sums: cells beyond the last one")
    fold = Fold(size, width, first)
    for part, (names, at) in parts.items():
        values = take(np.dtype(REDUCTIONS[part].dtype).str, at, [len(names), used if cells is None else len(cells)])
        columns = names if "".join(names).isascii() else [_restored_scalar(str, name) for name in names]
        fold.restore(used, cells, part, columns, values)
    return fold
