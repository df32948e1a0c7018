"""Changes of inputs that no format needs to be known for: bytes, numbers, trees of JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

# Where mistakes are: edges of types, of what a number can say, of what a parser counts in.
INTEGERS = (
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    256,
    32767,
    65535,
    65536,
    1 << 20,
    (1 << 24) - 1,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    -(1 << 31),
    (1 << 32) - 1,
    1 << 32,
    1 << 48,
    1 << 52,
    1 << 53,
    1 << 60,
    1 << 61,
    1 << 62,
    (1 << 62) - 1,
    (1 << 63) - 1,
    1 << 63,
    -(1 << 63),
    (1 << 64) - 1,
    1 << 64,
    -(1 << 64),
    10**19,
    10**30,
)
FLOATS = (0.0, -0.0, 0.5, 1e-9, 1e-300, 5e-324, 100.0, 100.1, 1e9, 1e15, 1e18, 1e19, 1e30, 1e300, 1e308, -1.0, -1e308)
# As JSON writes them: what no Python number turns into.
LITERALS = (
    "1e999",
    "-1e999",
    "1e999999",
    "1e-999999",
    "1e999999999",
    "NaN",
    "Infinity",
    "-Infinity",
    "0.1e1",
    "1E5",
    "123456789012345678901234567890",
    "-0",
    "0.0000000000000000000000001",
    "9" * 400,
    "9" * 5000,
    "1." + "3" * 500,
    "1e+20",
    "1e-20",
)
TEXTS = (
    "",
    " ",
    "\x00",
    "\n",
    "0",
    "-1",
    "1e999",
    "nan",
    "inf",
    "true",
    "GPU",
    "\ud800",
    "é" * 40,
    "٣٤",
    "²",
    "\x1b[31m",
    "a" * 2000,
    "/device:GPU:0",
    "../..",
    "9" * 30,
    "1_000",
    "%s%n",
    "<b>",
)


class Literal(str):
    """A piece of JSON that is written as it is."""


def of_bytes(random: Random, data: bytes, times: int | None = None) -> bytes:
    """Flip, overwrite, leave out, double, swap and cut stretches of bytes."""
    changed = bytearray(data)
    for _ in range(times or random.choice((1, 1, 1, 2, 3, 8))):
        if not changed:
            return bytes(changed)
        at = random.randrange(len(changed))
        length = min(random.choice((1, 1, 2, 4, 8, 64, 512)), len(changed) - at)
        match random.randrange(9):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length] * random.choice((1, 1, 2, 50))
            case 4:
                other = random.randrange(len(changed))
                changed[at : at + length] = changed[other : other + length]
            case 5:
                changed[at : at + length] = random.choice((b"\0", b"\xff")) * length
            case 6:
                number = random.choice(INTEGERS) & ((1 << 64) - 1)
                size = random.choice((2, 4, 8))
                order = random.choice(("little", "big"))
                part = (number & ((1 << 8 * size) - 1)).to_bytes(size, order)
                changed[at : at + size] = part
            case 7:
                changed[at:at] = random.randbytes(length)
            case _:
                if random.random() < 0.3:
                    del changed[at:]
    return bytes(changed)


def number(random: Random) -> int | float:
    match random.randrange(4):
        case 0:
            return random.choice(FLOATS)
        case 1:
            return random.randrange(-10, 1000)
        case 2:
            return random.choice(INTEGERS) + random.randrange(-2, 3)
        case _:
            return random.choice(INTEGERS)


def leaf(random: Random) -> Any:
    """A value of JSON without parts."""
    match random.randrange(6):
        case 0:
            return Literal(random.choice(LITERALS))
        case 1:
            return random.choice(TEXTS)
        case 2:
            return random.choice((None, True, False, [], {}, [[]], [None], {"": None}))
        case _:
            return number(random)


def _places(value: Any, found: list) -> list:
    """(container, key) of everything inside a tree."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            _places(value[key], found)
    return found


def tree(random: Random, value: Any, times: int | None = None) -> Any:
    """Change a tree of JSON in place: values, types, keys, doubled and missing parts."""
    for _ in range(times or random.choice((1, 1, 2, 3, 6))):
        places = _places(value, [])
        if not places:
            return leaf(random)
        inside, key = random.choice(places)
        match random.randrange(10):
            case 0:
                del inside[key]
            case 1:
                inside[key] = random.choice(([inside[key]], {"a": inside[key]}, str(inside[key])))
            case 2:
                other, at = random.choice(places)
                if not isinstance(other[at], dict | list):
                    inside[key] = other[at]
            case 3 if isinstance(inside, list):
                # Copies of its own, else a later change would be one of all of them.
                one = json.dumps(inside[key])
                inside[key:key] = [json.loads(one) for _ in range(random.choice((1, 1, 3, 40)))]
            case 4 if isinstance(inside, list):
                random.shuffle(inside)
            case 5 if isinstance(inside, dict):
                inside[random.choice((*TEXTS, str(key) + "x"))] = inside.pop(key)
            case 6 if isinstance(inside[key], int | float):
                inside[key] = inside[key] * random.choice((-1, 2, 1000, 10**6, 10**12, 0.001))
            case _:
                inside[key] = leaf(random)
    return value


def write(value: Any) -> str:
    """JSON text of a tree, with its literals as they are."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(write(v) for v in value) + "]"
    return json.dumps(value)
