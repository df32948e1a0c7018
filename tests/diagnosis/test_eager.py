"""Steps that run eagerly are said to, on any device; what that costs only where it is known."""

from functools import partial

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of

eager = partial(findings_of, cause="launch_bound")
SEEN = {"samples": 60, "eager": 55, "compiled": 0, "function": "train_step", "operations": 63}


def run_of(framework="tensorflow", gpus=(), fit=None, told=None, count=300, step_ms=8.0, **steps):
    run = Generated(seed=5, gpus=list(gpus), framework={"name": framework, "backend": framework, **(told or {})})
    run.facts["fit"] = {"loop": "custom", **(fit or {})}
    run.steps(count, step_ms=step_ms, **steps)
    return run.diagnose()


@pytest.mark.parametrize(("framework", "line"), [("tensorflow", "@tf.function"), ("jax", "@jax.jit")])
def test_a_loop_that_nothing_compiles_is_no_all_clear(framework, line):
    found = run_of(framework, fit={"dispatch": SEEN})
    (finding,) = eager(found)
    assert finding["lost_s"] is None and finding["saves_s"] is None, "nobody knows what it costs"
    code = finding["advice"]["code"]
    assert code.startswith(line) and "def train_step" in code
    assert finding["evidence"]["operations_per_step"] == 63
    assert finding["evidence"]["eager_op_us"] == pytest.approx(8000 / 63, rel=0.05)
    assert found["verdict"] == ("The step runs eagerly, operation by operation from Python; cost unknown.")


@pytest.mark.parametrize(
    "seen",
    [
        {"eager": 2, "compiled": 50},  # a compiled step, and an operation beside it
        {"eager": 30, "compiled": 20},
        {"eager": 3},  # mostly waiting, or Python of the user's own
        {"samples": 12, "eager": 12},  # too few looks
        {"on_core": 0.09},  # JAX: an operation waits for the compiled step before it
        {"operations": 4},  # each takes 2 ms: that Python starts it hardly shows
    ],
)
def test_what_is_no_eager_loop_is_not_called_one(seen):
    found = run_of(fit={"dispatch": {**SEEN, **seen}})
    assert eager(found) == []
    assert found["verdict"].startswith("Nothing held up training")


def test_looks_into_steps_that_only_compile_are_not_called_eager():
    """They meet the tracing."""
    assert eager(run_of("jax", fit={"dispatch": SEEN}, compile_ms=120)) == []
    assert eager(run_of("jax", fit={"dispatch": SEEN}, compile_ms=40))


def python(calls: str, share: float) -> dict:
    return {"samples": 60, "aside": share, "at": "train (train.py, line 9)", "calls": calls, "at_line": 1.0}


def test_a_log_that_is_written_in_each_step_is_named_with_its_cost():
    """Seen: histograms of all gradients were called a step that runs eagerly."""
    looks = {"python_in_steps": python("tf.summary", 0.75)}
    (finding,) = findings_of(run_of(fit=looks), cause="host_stall")
    assert finding["title"] == "tf.summary in each step stalls training"
    assert finding["lost_s"] == pytest.approx(0.75 * 300 * 0.008, rel=0.1)
    assert finding["saves_s"] == pytest.approx(0.99 * finding["lost_s"], rel=0.1)
    assert finding["advice"]["code"].startswith("if step % 100 == 0")
    rare = {"python_in_steps": python("tf.summary", 0.14)}
    assert findings_of(run_of(fit=rare), cause="host_stall") == []
    (behind,) = findings_of(run_of(gpus=[GPU], gpu_share=0.95, fit=looks), cause="host_stall") or [None]
    assert behind is None, "the GPU is at work meanwhile"


OWN = {**SEEN, "eager": 5, "operations": 7, "own": 45, "own_at": "to_tensors (train.py, line 17)", "at_place": 40}


def test_python_of_the_program_s_own_is_named_by_its_line_where_the_gpu_waits():
    found = partial(findings_of, cause="host_stall")
    (finding,) = found(run_of("torch", gpus=[GPU], gpu_share=0.15, fit={"dispatch": OWN}, step_ms=40))
    assert "to_tensors (train.py, line 17)" in finding["advice"]["text"]
    assert "75 % of a step" in finding["advice"]["text"] and finding["saves_s"] == 0
    assert finding["lost_s"] == pytest.approx(0.75 * 300 * 0.04, rel=0.1)
    (busy,) = found(run_of("torch", gpus=[GPU], gpu_share=0.6, fit={"dispatch": OWN}, step_ms=40))
    assert busy["lost_s"] == pytest.approx(0.4 * 300 * 0.04, rel=0.15), "a line that waits for the GPU costs nothing"
    assert not found(run_of("torch", gpus=[GPU], gpu_share=0.9, fit={"dispatch": OWN}, step_ms=40))
    assert not found(run_of("torch", fit={"dispatch": OWN}, step_ms=40)), "it may compute the model, without a GPU"
    many = OWN | {"operations": 400}
    assert not found(run_of("torch", gpus=[GPU], gpu_share=0.15, fit={"dispatch": many}, step_ms=40)), "launches"


def test_what_a_few_steps_do_is_not_said_of_each():
    """A loop that logs, or decodes, in every hundredth step: doing that seldom is no cure."""
    long = np.where(np.arange(300) % 100 == 50, 900.0, 2.0)
    logs = {"python_in_steps": python("tf.summary", 0.75)}
    for looks, title in ((logs, "tf.summary"), ({"dispatch": OWN}, "The program's own Python")):
        findings = findings_of(run_of("torch", gpus=[GPU], gpu_share=0.05, fit=looks, step_ms=long), cause="host_stall")
        assert not [one for one in findings if one["title"].startswith(title)]


def test_a_line_is_most_of_it_only_where_it_is():
    (finding,) = findings_of(
        run_of("torch", gpus=[GPU], gpu_share=0.15, fit={"dispatch": OWN | {"at_place": 9}}, step_ms=40),
        cause="host_stall",
    )
    assert "20 % of it in to_tensors" in finding["advice"]["text"]


def test_without_looks_the_cause_is_not_judged():
    found = run_of()
    assert "launch_bound" in [one["cause"] for one in found["silent"]]
    assert eager(run_of(fit={"dispatch": SEEN}, count=20)) == [], "too few steps"


def test_a_function_that_is_not_known_is_to_be_made():
    (finding,) = eager(run_of(fit={"dispatch": {**SEEN, "function": None, "operations": None}}))
    assert "into one function" in finding["advice"]["text"]
    assert "operations_per_step" not in finding["evidence"]


def test_beside_an_idle_gpu_its_idle_time_is_what_it_costs():
    (finding,) = eager(run_of(gpus=[GPU], fit={"dispatch": SEEN}, gpu_share=0.2))
    assert finding["title"] == "Eager execution leaves the GPU idle"
    assert finding["lost_s"] == pytest.approx(0.8 * 300 * 0.008, rel=0.1)
    assert finding["advice"]["code"].startswith("@tf.function")
    assert eager(run_of(gpus=[GPU], fit={"dispatch": SEEN}, gpu_share=0.9)) == []


def test_a_keras_model_told_to_run_eagerly_is_said_to_on_a_cpu():
    (finding,) = eager(run_of(fit={"loop": None, "run_eagerly": True}))
    assert finding["advice"]["code"] == "model.compile(..., run_eagerly=False)"
    assert eager(run_of("torch", fit={"loop": None, "run_eagerly": True})) == []


@pytest.mark.parametrize(
    ("framework", "by", "line"),
    [
        ("tensorflow", "tf.config.run_functions_eagerly(True)", "tf.config.run_functions_eagerly(False)"),
        ("jax", "jax_disable_jit", 'jax.config.update("jax_disable_jit", False)'),
    ],
)
def test_a_switch_that_makes_all_functions_eager_is_named(framework, by, line):
    (finding,) = eager(run_of(framework, told={"eager_by": by}))
    assert finding["advice"]["code"] == line
    assert ("JAX_DISABLE_JIT" in finding["advice"]["text"]) == (framework == "jax"), "what else may have set it"


def test_pytorch_runs_eagerly_as_usual_and_what_that_costs_is_left_open():
    for device, operations, gpus, is_named in (
        ("cpu", 400, [], True),
        ("cpu", 140, [], False),  # 57 µs each: four times as large batches gained 1.2 times
        (None, 400, [], False),  # another device may compute meanwhile
        (None, 400, [GPU], False),
    ):
        fit = {"dispatch": {**SEEN, "operations": operations}}
        found = run_of("torch", fit=fit, told={"device": device}, gpus=gpus)
        assert eager(found) == []
        title = f"Each step starts some {operations} small operations"
        assert [finding["title"] for finding in findings_of(found, cause="slow_steps")] == [title] * is_named
        assert all(finding["advice"]["question"] and finding["lost_s"] is None for finding in findings_of(found))


def test_a_small_loss_does_not_hide_an_eager_step():
    found = run_of(fit={"dispatch": SEEN}, wait_ms=3.0)
    assert "waits for its input" in found["verdict"]
    assert "runs eagerly" in found["verdict"]


@pytest.mark.parametrize(("others", "input_first"), [(True, False), (False, True)])
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_an_eager_step_is_named_alone_where_batches_in_memory_wait_for_a_core(framework, others, input_first):
    """Seen: "12 s of 67 s: training waits for its input", whose stages hardly worked, and tf.function second."""
    machine = {"cpus": 2, "cpus_allowed": 2}
    run = Generated(seed=5, framework={"name": framework, "backend": framework}, machine=machine)
    run.facts["fit"] = {"loop": "custom", "dispatch": SEEN, "input_kind": "tf.data"}
    run.steps(300, step_ms=45.0, wait_ms=10.0)
    stages = ("from_tensor_slices", "TensorSlice", 0.05, 1.0, ""), ("batch", "BatchV2", 0.1, 1.0, "")
    run.reading(*stages, ("prefetch", "Prefetch", 0.01, 1.0, ""), batches=300)
    times = np.arange(run.facts["started_ns"], run.now, 500_000_000)
    host = {"process_cpu_pct": 60.0 if others else 110.0, "cpu_pct": 98.0 if others else 60.0}
    samples = {"host": {"time_ns": times} | {name: np.full(len(times), pct) for name, pct in host.items()}}
    result = run.diagnose(samples=samples)
    assert ("input_bound" in {finding["cause"] for finding in findings_of(result)}) == input_first
    assert result["verdict"].startswith("Training waits" if input_first else "The step runs eagerly")
    assert len(eager(result)) == 1


@pytest.mark.parametrize("gpus", [[], [GPU]])
def test_where_no_gpu_is_in_use_none_is_said_to_wait(gpus):
    (finding,) = eager(run_of("jax", gpus=gpus, fit={"run_eagerly": True, "loop": "keras"}, gpu_share=0.1))
    assert ("GPU" in finding["advice"]["text"]) == bool(gpus)


COPIES = {**SEEN, "operations": None, "in_copied": 50, "copied_at": "remember (agent.py, line 36)", "on_core": 0.9}


@pytest.mark.parametrize(
    "seen",
    [
        {"function": "remember", "called": "remember", "in_called": 48},  # one finding in place of two
        {"function": "", "called": None, "in_called": 0},  # in the loop itself
        {"eager": 12, "in_copied": 11, "function": "store", "called": "store", "in_called": 40},  # mostly Python
    ],
)
def test_copies_of_arrays_are_claimed_once(seen):
    """Seen: one remedy under "The step runs eagerly" and under "Most of each step passes in remember"."""
    found = run_of("jax", fit={"dispatch": {**COPIES, **seen}})
    [finding] = [*found["findings"], *found["spans"]]
    assert "x.at[...].set(...)" in finding["advice"]["text"] and "donate_argnums" in finding["advice"]["code"]
    assert finding["title"] in (
        "Each step copies arrays to change some of their elements",
        "Most of each step passes in store",
    )
