"""Real local clusters: Ray Tune's trials and Ray Train's workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from packages import need
from processes import HERE, REPOSITORY, environment, results, start
from programs import ran

from gpu_util_callback.job import ray_gives_no_gpu


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster whose workers import what is tested."""
    need("ray")
    import ray

    paths = os.pathsep.join(filter(None, [str(REPOSITORY), str(HERE), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        started = ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield started.address_info["gcs_address"]
        ray.shutdown()


def test_each_trial_has_its_own_recording(cluster, tmp_path):
    program = start("ray_program.py", str(tmp_path / "logs"), cluster, RAY_AIR_NEW_OUTPUT="0")
    one = results(program)["trials"]
    assert one["recorded"] == one["names"]
    assert len(set(one["names"])) == 2
    assert sorted(one["configs"]) == ["batch_size=2", "batch_size=8"]
    assert one["trial_of"] == ["Ray Tune", "Ray Tune"]
    assert one["runs"] == one["recorded"], "each is a TensorBoard run of its own"
    assert one["sessions"] == 2, "trials are no workers of one job"
    assert one["steps"] == [30, 30]
    assert one["status"] == ["ended", "ended"]
    for name, config, text in zip(one["recorded"], one["configs"], one["texts"], strict=True):
        assert name in text and config in text
    assert sum("which Ray may delete" in line for line in one["said"]) == 1


def train(tmp_path, *trainers):
    return results(start("ray_train_program.py", str(tmp_path), *trainers), 280)


def check_workers(one, trainer, job_source):
    assert [facts["rank"] for facts in one["facts"]] == [0, 1]
    assert len({facts["job"] for facts in one["facts"]}) == 1
    for facts in one["facts"]:
        assert facts["job"] and facts["job_source"] == job_source
        assert facts["world_size"] == 2
        assert facts["trial"] == f"night-{trainer}" and facts["trial_of"] == "Ray Train"
    assert one["steps"] == [120, 120]
    assert one["status"] == ["ended", "ended"]


def check_straggler(one):
    assert one["causes"] == [["imbalance", [1]]]
    (clock,) = one["clocks"]["workers"]
    assert abs(clock["offset_ms"]) < 3, "both workers read one clock"


@pytest.mark.slow
def test_the_workers_of_ray_train_are_one_session(tmp_path):
    need("ray", "torch")
    one = train(tmp_path, "torch")["torch"]
    check_workers(one, "torch", "torchelastic")
    check_straggler(one)


@pytest.mark.slow
def test_other_trainers_of_ray_train(tmp_path):
    need("ray", "torch", "tensorflow", "jax", "keras")
    found = train(tmp_path, "tensorflow", "jax", "keras")
    check_workers(found["tensorflow"], "tensorflow", "TF_CONFIG")
    check_straggler(found["tensorflow"])
    check_workers(found["jax"], "jax", "Ray Train")
    check_workers(found["keras"], "keras", "torchelastic")
    for name in ("jax", "keras"):  # on CPUs, their workers train without each other
        assert found[name]["causes"] == []
        assert found[name]["clocks"]["workers"] == []


@pytest.mark.slow
def test_the_demo_ends_with_its_trials_compared(tmp_path):
    need("ray", "tensorflow", "keras")
    program = str(REPOSITORY / "demo" / "ray_tune.py")
    sizes = ["--samples", "256", "--batches", "8", "32"]
    done = ran(sys.executable, program, "--log-dir", tmp_path / "logs", *sizes, env=environment())
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.split()[:3] == ["batch", "us", "a"])
    rows = [line.split() for line in lines[at + 1 : at + 3]]
    assert [row[0] for row in rows] == ["8", "32"]
    assert all(float(row[1].replace(",", "")) > 0 and row[3:5] == ["no", "GPU"] for row in rows)
    assert any(line.startswith("The least time per sample: batch ") for line in lines)
    assert f"tensorboard --logdir {tmp_path / 'logs'}" in lines[-1]


def test_ray_s_own_server_is_no_profiler_s(cluster):
    """Seen: TensorFlow under Ray was never profiled."""
    need("tensorflow")
    from gpu_util_callback.backends.tensorflow.profiler import _THREAD, SESSION

    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    assert _THREAD in names, "Ray's"
    assert SESSION.server() is None


@pytest.mark.parametrize("setting", [None, "0"])
def test_a_task_without_a_gpu_uses_none_though_it_sees_them(cluster, setting):
    """Ray 2.60 leaves CUDA_VISIBLE_DEVICES as it was for those."""
    import ray

    variables = {} if setting is None else {"env_vars": {"CUDA_VISIBLE_DEVICES": setting}}

    def ask():
        from gpu_util_callback.job import ray_gives_no_gpu

        return ray_gives_no_gpu(), os.environ.get("CUDA_VISIBLE_DEVICES")

    class Actor:
        def ask(self):
            return ask()

    without = ray.remote(num_gpus=0, runtime_env=variables)(ask)
    assert ray.get(without.remote()) == (True, setting)
    assert ray.get(ray.remote(num_gpus=1)(ask).remote())[0] is False
    actor = ray.remote(num_gpus=0, runtime_env=variables)(Actor).remote()
    assert ray.get(actor.ask.remote()) == (True, setting)
    assert ray_gives_no_gpu() is False, "the program that started the tasks"
