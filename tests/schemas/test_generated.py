"""The schemas and the tab's types are made of their declarations."""

from typing import Annotated, Literal, NotRequired, TypedDict

from gpu_util_callback.recording.manifest_facts import Count, Exactly, Number, Unpromised
from harness import schemas


class Inner(TypedDict, total=False):
    """An inner object."""

    name: str


class Base(TypedDict):
    """A base."""

    kind: Literal["a", "b"]  # of the two


class Whole(Base):
    """An object
    of some lines.
    """

    # Above it,
    # on two lines.
    count: Count | None
    pair: Annotated[list[Number], Exactly(2)]
    inner: NotRequired[Inner]
    inners: list[Inner | None]
    by_name: dict[str, float | str]
    hidden: Annotated[Inner | None, Unpromised]


def test_a_declaration_becomes_a_schema():
    parts = {}
    assert schemas.object_schema(Whole, parts) == {
        "type": "object",
        "description": "An object of some lines.",
        "properties": {
            "kind": {"enum": ["a", "b"], "description": "of the two"},
            "count": {"type": ["integer", "null"], "minimum": 0, "description": "Above it, on two lines"},
            "pair": {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 2, "maxItems": 2},
            "inner": {"$ref": "#/$defs/Inner"},
            "inners": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]}},
            "by_name": {"type": "object", "additionalProperties": {"type": ["number", "string"]}},
            "hidden": {"type": ["object", "null"]},
        },
        "required": ["kind", "count", "pair", "inners", "by_name", "hidden"],
    }
    assert parts["Inner"]["properties"] == {"name": {"type": ["string", "null"]}} and parts["Inner"]["required"] == []


def test_a_declaration_becomes_typescript():
    interfaces = {}
    assert schemas.typescript(Whole, interfaces) == "Whole"
    assert list(interfaces) == ["Inner", "Whole"]
    assert interfaces["Whole"].splitlines() == [
        "/** An object of some lines. */",
        "export interface Whole {",
        "  /** of the two */",
        "  kind: 'a' | 'b';",
        "  /** Above it, on two lines */",
        "  count: number | null;",
        "  pair: [number, number];",
        "  inner?: Inner;",
        "  inners: (Inner | null)[];",
        "  by_name: Record<string, number | string>;",
        "  hidden: Inner | null;",
        "}",
    ]
