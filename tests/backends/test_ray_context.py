"""What Ray is asked, and what is made of its answers, without Ray."""

from __future__ import annotations

import sys
import types
import warnings

import pytest

from gpu_util_callback.job import ray_context


class Context:
    """Answers as Ray's contexts do: what it no longer likes to be asked, it raises for."""

    def __init__(self, **answers):
        self.answers = answers

    def __getattr__(self, name):
        def ask():
            warnings.warn(f"{name} is meant to be called elsewhere", UserWarning, stacklevel=2)
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask


def part(context):
    module = types.ModuleType("part of ray")
    module.get_context = lambda: context
    return module


@pytest.fixture
def ray(monkeypatch):
    runtime = types.SimpleNamespace(
        gcs_address="10.0.0.1:6379", get_job_id=lambda: "01000000", get_actor_id=lambda: "ab12"
    )
    module = types.ModuleType("ray")
    module.get_runtime_context = lambda: runtime
    module.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "ray", module)
    for name in ("ray.tune", "ray.train"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name, **answers: monkeypatch.setitem(sys.modules, name, part(Context(**answers)))


@pytest.mark.parametrize("part_of_a_cluster", [False, True])
def test_outside_of_ray_there_is_nothing(ray, recwarn, monkeypatch, part_of_a_cluster):
    module = sys.modules["ray"]
    if part_of_a_cluster:  # the program that starts the trials
        monkeypatch.setattr(module.get_runtime_context(), "get_actor_id", lambda: None)
    else:
        monkeypatch.setattr(module, "is_initialized", lambda: False)
    filters = list(warnings.filters)
    assert ray_context() is None
    ray("ray.train", get_world_size=1, get_world_rank=0)  # imported, and no more
    ray("ray.tune")
    assert ray_context() is None
    assert not recwarn.list and warnings.filters == filters


def test_a_worker_of_ray_train(ray):
    ray("ray.train", get_world_size=4, get_world_rank=3, get_experiment_name="night")
    ray("ray.tune", get_trial_name=None)
    found = ray_context()
    assert found.facts() == {"trial": "night", "trial_of": "Ray Train"}
    source, identity, rank, size = found.rendezvous()
    assert (source, rank, size) == ("Ray Train", 3, 4)
    assert "night" in identity and "01000000" in identity


def test_a_run_with_one_worker_is_no_job_of_several(ray):
    ray("ray.train", get_world_size=1, get_world_rank=0, get_experiment_name="night")
    assert ray_context().rendezvous() is None


@pytest.mark.parametrize(
    ("folder", "config"),
    [
        ("trial_1f_00001_1_batch_size=8,lr=0.1000_2026-01-31_12-00-00", "batch_size=8,lr=0.1000"),
        ("trial_1f_00001_0_2026-01-31_12-00-00", ""),  # nothing is varied
        ("trial_1f_00001_12_optimizer=adam_w", "optimizer=adam_w"),
        ("named_by_the_user", ""),
    ],
)
def test_a_trial_and_what_sets_it_apart(ray, folder, config):
    ray("ray.train", get_world_size=DeprecationWarning("not in Ray Tune"))
    ray("ray.tune", get_trial_name="trial_1f_00001", get_trial_dir=f"/tmp/ray/x/{folder}")
    found = ray_context()
    assert found.config == config
    assert found.facts()["trial"] == "trial_1f_00001"
    assert found.facts().get("trial_config", "") == config
    assert found.rendezvous() is None


def test_trials_record_below_their_names(ray):
    ray("ray.tune", get_trial_name="trial_1f_00001")
    trial = ray_context()
    assert trial.home("/shared/logs/") == "/shared/logs/trial_1f_00001"
    assert trial.home("s3://bucket/logs") == "s3://bucket/logs/trial_1f_00001"
    for known in ("/shared/trial_1f_00001/logs", "logs"):  # its own folder already
        assert trial.home(known) == known
    ray("ray.train", get_world_size=2, get_world_rank=1, get_experiment_name="night")
    assert ray_context().home("/shared/logs") == "/shared/logs"


def test_a_relative_folder_is_rays_own(ray, monkeypatch, tmp_path):
    ray("ray.tune", get_trial_name="trial_1f_00001")
    monkeypatch.chdir(tmp_path)
    found = ray_context()
    assert found.lost_folder("logs") == str(tmp_path / "logs")
    for elsewhere in (str(tmp_path / "logs"), "s3://bucket/logs", "~/logs"):
        assert found.lost_folder(elsewhere) is None
