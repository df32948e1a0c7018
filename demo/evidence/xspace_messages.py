"""The messages of XSpace files (`*.xplane.pb`), to write and to cut them; the package reads them without protobuf."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "evidence.xspace"
_Field = descriptor_pb2.FieldDescriptorProto
_INT, _UINT, _DOUBLE, _BYTES = (_Field.TYPE_INT64, _Field.TYPE_UINT64, _Field.TYPE_DOUBLE, _Field.TYPE_BYTES)

# message -> (field, number, type or message name, repeated, member of the oneof)
_MESSAGES: dict[str, tuple[tuple[str, int, Any, bool, bool], ...]] = {
    "XStat": (
        ("metadata_id", 1, _INT, False, False),
        ("double_value", 2, _DOUBLE, False, True),
        ("uint64_value", 3, _UINT, False, True),
        ("int64_value", 4, _INT, False, True),
        ("str_value", 5, _BYTES, False, True),
        ("bytes_value", 6, _BYTES, False, True),
        ("ref_value", 7, _UINT, False, True),
    ),
    "XEvent": (
        ("metadata_id", 1, _INT, False, False),
        ("offset_ps", 2, _INT, False, True),
        ("num_occurrences", 5, _INT, False, True),
        ("duration_ps", 3, _INT, False, False),
        ("stats", 4, "XStat", True, False),
    ),
    "XLine": (
        ("id", 1, _INT, False, False),
        ("display_id", 10, _INT, False, False),
        ("name", 2, _BYTES, False, False),
        ("display_name", 11, _BYTES, False, False),
        ("timestamp_ns", 3, _INT, False, False),
        ("duration_ps", 9, _INT, False, False),
        ("events", 4, "XEvent", True, False),
    ),
    "XEventMetadata": (
        ("id", 1, _INT, False, False),
        ("name", 2, _BYTES, False, False),
        ("display_name", 4, _BYTES, False, False),
        ("metadata", 3, _BYTES, False, False),
        ("stats", 5, "XStat", True, False),
        ("child_id", 6, _INT, True, False),
    ),
    "XStatMetadata": (
        ("id", 1, _INT, False, False),
        ("name", 2, _BYTES, False, False),
        ("description", 3, _BYTES, False, False),
    ),
    # Maps are repeated key/value messages on the wire; spelt out, they need no map machinery.
    "EventMetadataEntry": (("key", 1, _INT, False, False), ("value", 2, "XEventMetadata", False, False)),
    "StatMetadataEntry": (("key", 1, _INT, False, False), ("value", 2, "XStatMetadata", False, False)),
    "XPlane": (
        ("id", 1, _INT, False, False),
        ("name", 2, _BYTES, False, False),
        ("lines", 3, "XLine", True, False),
        ("event_metadata", 4, "EventMetadataEntry", True, False),
        ("stat_metadata", 5, "StatMetadataEntry", True, False),
        ("stats", 6, "XStat", True, False),
    ),
    "XSpace": (
        ("planes", 1, "XPlane", True, False),
        ("errors", 2, _BYTES, True, False),
        ("warnings", 3, _BYTES, True, False),
        ("hostnames", 4, _BYTES, True, False),
    ),
}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="evidence/xspace.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        built = file.message_type.add(name=message)
        if any(one_of for *_, one_of in fields):
            built.oneof_decl.add(name="value")
        for name, number, kind, repeated, one_of in fields:
            field = built.field.add(
                name=name, number=number, label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            )
            if isinstance(kind, str):
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
            if one_of:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


@cache
def message_class(name: str) -> Any:
    """Return the class of a message: "XSpace", "XPlane", "XLine", "XEvent" and so on."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))
