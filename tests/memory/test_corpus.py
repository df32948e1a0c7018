"""Leaks of real trainings are found, healthy ones left alone; `python -m harness.leaks table`."""

from functools import cache

import pytest

from harness.leaks.programs import BACKENDS, LEAKS
from harness.leaks.record import ANY, HELD_OUT_FILE, load
from harness.leaks.replay import MACHINE, Outcome, judge, outcomes

RECALL, ONSET, FULL = 0.95, 0.05, 0.15
MOSTLY = 0.95  # of the runs are that exact


@cache
def judged() -> list[Outcome]:
    return outcomes()


@cache
def held_out() -> list[Outcome]:
    return outcomes(HELD_OUT_FILE)


RUNS = pytest.mark.parametrize("runs", [judged, held_out])


def leaks(runs=judged) -> list[Outcome]:
    return [one for one in runs() if one.case.leaks]


def test_the_corpus_is_large_and_has_every_backend_and_kind():
    assert len(judged()) >= 60
    for backend in BACKENDS:
        mine = [one.case for one in judged() if one.case.backend == backend]
        assert sum(not case.leaks for case in mine) >= 6
        assert len({case.kind for case in mine if case.leaks}) == len(LEAKS)


def test_as_many_are_held_out_as_show_something():
    assert len(held_out()) >= 24
    assert {one.case.backend for one in leaks(held_out)} == set(BACKENDS)
    assert {one.case.backend for one in held_out() if not one.case.leaks} == set(BACKENDS)


@RUNS
def test_leaks_are_found(runs):
    assert sum(one.right for one in leaks(runs)) >= RECALL * len(leaks(runs))


@RUNS
def test_no_healthy_run_is_reported_at_any_time(runs):
    assert [one.case.name for one in runs() if not one.case.leaks and not one.right] == []


def test_with_much_memory_a_leak_is_reported_after_its_training_and_not_before():
    """A cache that is filled by then is none."""
    for name, run in load().items():
        case = ANY[name]
        if case.leaks and case.kind != "buffer":
            one = judge(name, run, MACHINE)
            planned = run["facts"]["fit"].get("epochs")
            assert one.right and (one.said_at == 1.0 or not planned), name
            assert ("after the end of this training" in one.title) == bool(planned), name


@pytest.mark.parametrize(("which", "most"), [("onset_error", ONSET), ("projected_error", FULL)])
@RUNS
def test_onset_and_projection_are_near_what_happened(runs, which, most):
    errors = [getattr(one, which) for one in leaks(runs) if getattr(one, which) is not None]
    assert len(errors) >= 0.9 * len(leaks(runs))
    assert sum(error <= most for error in errors) >= MOSTLY * len(errors)


def test_what_grows_is_named_in_all_that_is_held_out():
    assert [
        (one.case.name, one.grows_with)
        for one in leaks(held_out)
        if one.right and not any(word.lower() in one.grows_with.lower() for word in one.case.named)
    ] == []


def test_what_grows_is_named_in_the_corpus():
    for kind, says in {"buffer": "cache()", "workers": "worker processes", "traces": " in each step"}.items():
        named = [says in one.grows_with for one in leaks() if one.case.kind == kind]
        assert named and all(named), kind
