"""Make the JSON schemas and the tab's types of the TypedDicts that declare them.

`python -m harness.schemas` writes them, `--check` ends with 1 where a committed file differs. A
class's docstring and the comment beside or above a field become their descriptions. A field that is
`NotRequired` may be absent; one of a class with `total=False`, such as the manifest's, may be null, too.
"""

import ast
import inspect
import json
import sys
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpu_util_callback.diagnosis.report_types import LogdirReport, Total
from gpu_util_callback.recording.manifest_facts import MOST_COUNT, Exactly, Status, Unpromised, Within, unwrapped
from gpu_util_callback.traces.trace_types import TraceReport
from tensorboard_plugin.reply_types import JobReply, RecordingReply, RunsReply, TotalReply, WindowReply

ROOT = Path(__file__).parents[1]
SCHEMAS = {"report": LogdirReport, "total": Total, "trace": TraceReport}
REPLIES = RunsReply, TotalReply, RecordingReply, WindowReply, JobReply
# The tab makes some of these itself, of the fields that it needs: all but those named here may be absent.
PARTIAL = {"WordedFinding": {"id", "cause"}, "GpuReport": {"index"}, "Spread": set()}
# The type of all fields that have no name of their own.
OTHERS = "__extra_items__"
JSON = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", object: None}
TYPESCRIPT = {str: "string", int: "number", float: "number", bool: "boolean", NoneType: "null", object: "unknown"}


def main() -> int:
    """Write the files, or compare them with what is committed."""
    files = {ROOT / "gpu_util_callback/schemas" / f"{name}.json": schema_text(name) for name in SCHEMAS}
    files[ROOT / "frontend/src/api/types.ts"] = typescript_text()
    if "--check" not in sys.argv:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in files.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} differs from its declaration: run `make schemas` and commit the result")
    return bool(stale)


@cache
def comments(kind: Any) -> dict[str, str]:
    """Return the comment of each field of a TypedDict, those of its bases included."""
    lines, _ = inspect.getsourcelines(kind)
    (node,) = ast.parse("".join(lines)).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for base in map(ast.unparse, node.bases):
        if base != "TypedDict":
            found |= comments(getattr(sys.modules[kind.__module__], base))
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            first = field.lineno - 1
            while lines[first - 1].lstrip().startswith("#"):
                first -= 1
            above = " ".join(line.strip("# \n") for line in lines[first : field.lineno - 1])
            beside = lines[field.end_lineno - 1].partition("  # ")[2].strip()
            found[ast.unparse(field.target)] = above.removesuffix(".") or beside
    return found


def fields(kind: Any) -> list[tuple[str, Any, bool, str]]:
    """Return name, type, whether it is required, and description of each field."""
    declared = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        required = name in kind.__required_keys__
        if not required and get_origin(hint) is not NotRequired:
            hint = hint | None
        declared.append((name, hint, required, comments(kind).get(name, "")))
    return declared


def members(kind: Any) -> tuple[Any, ...]:
    """Return the types that a type stands for."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


# --- JSON schema ----------------------------------------------------------------------------------


def schema_text(name: str) -> str:
    """Return a schema as JSON."""
    kind, parts = SCHEMAS[name], {}
    whole = object_schema(kind, parts)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gpu-util-callback:{name}:1",
        "title": f"gpu-util {name} --json",
    }
    return json.dumps({**head, **whole, "$defs": dict(sorted(parts.items()))}, indent=1, ensure_ascii=False) + "\n"


def object_schema(kind: Any, parts: dict[str, dict]) -> dict:
    """Return the schema of a TypedDict."""
    properties: dict[str, dict] = {}
    result = {"type": "object", "description": " ".join(inspect.getdoc(kind).split()), "properties": properties}
    for name, hint, _, text in fields(kind):
        properties[name] = schema(hint, parts) | ({"description": text} if text else {})
    return result | {"required": [name for name, _, required, _ in fields(kind) if required]}


def schema(hint: Any, parts: dict[str, dict]) -> dict:
    """Return the schema of a type; the TypedDicts in it are added to `parts`."""
    kind, marks = unwrapped(hint)
    if Unpromised in marks:
        return {"type": ["object", "null"]}
    each = list({json.dumps(one): one for one in (_schema(member, marks, parts) for member in members(kind))}.values())
    if all(isinstance(one.get("type"), str) for one in each):
        # A keyword such as `minimum` is about its own type alone.
        names = [one["type"] for one in each]
        together = {name: value for one in each for name, value in one.items()}
        return together | {"type": names[0] if len(names) == 1 else names}
    return each[0] if len(each) == 1 else {"anyOf": each}


def _schema(hint: Any, marks: list[Any], parts: dict[str, dict]) -> dict:
    kind, own = unwrapped(hint)
    marks, origin, args = [*own, *marks], get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        if kind.__name__ not in parts:
            parts[kind.__name__] = object_schema(kind, parts)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if origin is list:
        length = next((mark.length for mark in marks if isinstance(mark, Exactly)), None)
        bounds = {} if length is None else {"minItems": length, "maxItems": length}
        return {"type": "array", "items": schema(args[0], parts), **bounds}
    if origin is dict:
        values = schema(args[1], parts)
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if JSON[kind] is None:
        return {}
    within = next((mark for mark in marks if isinstance(mark, Within)), None)
    limits = {} if within is None else {"minimum": within.least, "maximum": within.most}
    return {"type": JSON[kind], **{name: limit for name, limit in limits.items() if abs(limit) < MOST_COUNT}}


# --- TypeScript -----------------------------------------------------------------------------------


def typescript_text() -> str:
    """Return the types of all replies."""
    interfaces: dict[str, str] = {}
    for reply in REPLIES:
        typescript(reply, interfaces)
    head = "/** The plugin's HTTP replies; made of `tensorboard_plugin/reply_types.py` by `make schemas`. */\n"
    status = f"export type Status = {' | '.join(map(repr, get_args(Status)))};\n"
    return "\n".join([head, status, *interfaces.values()])


def typescript(hint: Any, interfaces: dict[str, str]) -> str:
    """Return the TypeScript of a type; the TypedDicts in it are added to `interfaces`."""
    kind, marks = unwrapped(hint)
    origin, args = get_origin(kind), get_args(kind)
    if kind is Status:
        return "Status"
    if is_typeddict(kind):
        if kind.__name__ not in interfaces:
            interfaces[kind.__name__] = interface(kind, interfaces)
        return kind.__name__
    if origin is Literal:
        return " | ".join(map(repr, args))
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(typescript(member, interfaces) for member in args))
    if origin is list:
        item = typescript(args[0], interfaces)
        length = next((mark.length for mark in marks if isinstance(mark, Exactly)), None)
        if length is not None:
            return f"[{', '.join([item] * length)}]"
        return f"({item})[]" if "|" in item else f"{item}[]"
    if origin is dict:
        return f"Record<string, {typescript(args[1], interfaces)}>"
    if origin is tuple or hasattr(kind, "_fields"):
        items = args or get_type_hints(kind).values()
        return f"[{', '.join(typescript(item, interfaces) for item in items)}]"
    return TYPESCRIPT[kind]


def interface(kind: Any, interfaces: dict[str, str]) -> str:
    """Return the TypeScript of a TypedDict."""
    lines = [f"/** {' '.join(inspect.getdoc(kind).split())} */", f"export interface {kind.__name__} {{"]
    needed = PARTIAL.get(kind.__name__, kind.__required_keys__)
    for name, hint, _, text in fields(kind):
        if text:
            lines.append(f"  /** {text} */")
        key = "[name: string]" if name == OTHERS else name if name in needed else f"{name}?"
        lines.append(f"  {key}: {typescript(hint, interfaces)};")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    sys.exit(main())
