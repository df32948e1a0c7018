"""A manifest is checked field by field: what is wrong goes, with a line; what is fine stays."""

import copy
import json
import math

import pytest
from make_recording import make_recording

from gpu_util_callback.recording.manifest_facts import checked, encodable
from gpu_util_callback.recording.work import batch_size


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = make_recording(tmp_path_factory.mktemp("facts"), "thirds", steps=120, gpus=2, windows=[(4, 8)])
    found = json.loads((path / "manifest.json").read_text())
    found["windows"] = [{"window": 0, "first_step": 4, "stop_step": 8, "profile": "x"}]
    found["unavailable"] = [{"source": "NVML", "reason": "none", "cure": ""}]
    del found["synthetic"], found["scenario"]  # of the script that made it, not of a recorder
    return found


def places(value, at=()):
    """The path of everything in a tree."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inside in items:
        yield (*at, key)
        if isinstance(inside, (dict, list)):
            yield from places(inside, (*at, key))


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def with_value(tree, path, value):
    tree = copy.deepcopy(tree)
    at(tree, path[:-1])[path[-1]] = value
    return tree


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def test_what_the_recorder_writes_is_taken_as_it_is(manifest):
    facts, left_out = checked(manifest)
    assert left_out == []
    assert facts == manifest


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 10**30, -(10**5000), 1e308, "x", "\ud800", {"a": 1}, [[[]]], [None], True, 0.5, -1],
    ids=["nan", "inf", "1e30", "digits", "1e308", "text", "half", "object", "list", "nulls", "true", "0.5", "-1"],
)
def test_every_field_at_every_level_may_be_anything(manifest, value):
    for path in places(manifest):
        if path[0] == "format":
            continue
        facts, left_out = checked(with_value(manifest, path, value))
        text = json.dumps(facts, allow_nan=False, ensure_ascii=False)
        text.encode()
        assert finite(facts), path
        assert all("\n" not in line and len(line) < 300 for line in left_out), path
        # Whatever is left out is named, and nothing else goes but what cannot be without it.
        gone = manifest.keys() - facts.keys()
        assert gone <= {path[0], "account", "diagnosis", "ended_ns", "heartbeat_ns"}, path
        assert left_out or not gone, path


def test_what_is_wrong_is_named_and_the_rest_stays(manifest):
    for path, value, says in (
        (("gpus", 0, "name"), {"a": 1}, "gpus[0].name is an object, not a text"),
        (("gpus", 1, "index"), "x", "gpus[1].index is 'x', not a whole number from 0 to 4095"),
        (("gpus", 1, "index"), 0, "gpus[1].index is 0, as that of another one"),
        (("fit", "batch_size"), -4, "fit.batch_size is -4, not a whole number, 0 or more"),
        (("account", "time_s", "step"), "x", "account.time_s.step is 'x', not a number"),
        (("account", "time_s", "step"), 1e6, "account does not sum to the wall time"),
        (("diagnosis", "findings"), 5, "diagnosis.findings is 5, not a list"),
        (("diagnosis", "spans", 0, "advice"), 0.5, "diagnosis.spans[0].advice is 0.5, not an o"),
        (("windows", 0, "first_step"), [], "windows[0].first_step is a list, not a whole"),
        (("unavailable", 0, "reason"), None, "unavailable[0].reason is null, not a text"),
        (("unavailable", 0), {"source": "NVML"}, "unavailable[0] has no reason"),
        (("ended_ns",), 7, "ended_ns is "),
        (("status",), "sleeping", "status is 'sleeping', not one of live, ended, interrupted"),
    ):
        facts, left_out = checked(with_value(manifest, path, value))
        assert len(left_out) == 1 and left_out[0].startswith(says), (path, left_out)
        kept = manifest.keys() - {path[0]}
        assert {name: facts.get(name) for name in kept} == {name: manifest[name] for name in kept}
    facts, _ = checked(with_value(manifest, ("gpus", 0, "name"), {"a": 1}))
    assert facts["gpus"][0] == {k: v for k, v in manifest["gpus"][0].items() if k != "name"}
    facts, _ = checked(with_value(manifest, ("gpus", 0, "index"), "x"))
    assert facts["gpus"] == manifest["gpus"][1:]


@pytest.mark.parametrize("dims", [[[[3, 8], [20, 31], 3], [[3, 8]]], [[8, 4], None], [[None]]])
def test_sizes_of_inputs_that_vary_are_facts(manifest, dims):
    facts, left_out = checked(with_value(manifest, ("fit", "input_dims"), dims))
    assert not left_out and facts["fit"]["input_dims"] == dims
    assert batch_size(facts["fit"] | {"batch_size": None}) == (8 if dims[0][0] == 8 else None)


def test_what_a_newer_version_adds_is_left_out(manifest):
    more = {"unheard_of": {"x": [1, math.nan]}, "fit": {**manifest["fit"], "colour": "red"}}
    facts, left_out = checked({**manifest, **more})
    assert left_out == []
    assert facts == manifest


def test_text_can_be_written_whatever_it_was():
    for text in ("plain", "ünïcode \U0001f600", "half \ud800", "\udcff"):
        encodable(text).encode()
    assert encodable("ünï") == "ünï"
