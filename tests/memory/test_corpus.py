"""Leaks of real trainings are found, healthy ones left alone; `python -m tests.memory table`."""

from functools import cache

import pytest

from tests.memory.programs import BACKENDS, LEAKS
from tests.memory.replay import Outcome, outcomes

RECALL, ONSET, FULL = 0.95, 0.05, 0.15
MOSTLY = 0.95  # of the runs are that exact


@cache
def judged() -> list[Outcome]:
    return outcomes()


def leaks() -> list[Outcome]:
    return [one for one in judged() if one.case.rate]


def test_the_corpus_is_large_and_has_every_backend_and_kind():
    assert len(judged()) >= 60
    for backend in BACKENDS:
        mine = [one.case for one in judged() if one.case.backend == backend]
        assert sum(not case.rate for case in mine) >= 6
        assert len({case.kind for case in mine if case.rate}) >= len(LEAKS) - 3


def test_leaks_are_found():
    assert sum(one.right for one in leaks()) >= RECALL * len(leaks())


def test_no_healthy_run_is_reported_at_any_time():
    assert [one.case.name for one in judged() if not one.case.rate and not one.right] == []


@pytest.mark.parametrize(("which", "most"), [("onset_error", ONSET), ("projected_error", FULL)])
def test_onset_and_projection_are_near_what_happened(which, most):
    errors = [getattr(one, which) for one in leaks() if getattr(one, which) is not None]
    assert len(errors) >= 0.9 * len(leaks())
    assert sum(error <= most for error in errors) >= MOSTLY * len(errors)


def test_lists_buffers_and_workers_are_named():
    for kind, says in {
        "list": "Keeps.logits", "buffer": "cache()", "workers": "worker processes",
        "checkpoints": "Saves.checkpoints",
    }.items():  # fmt: skip
        named = [says in one.grows_with for one in leaks() if one.case.kind == kind]
        assert named and sum(named) >= 0.75 * len(named), kind
