"""What a JAX program has compiled again and again, and the line that calls it."""

import functools

import numpy as np
import pytest
from packages import need

from gpu_util_callback.diagnosis import diagnose

X = np.ones((4, 5), "float32")


class Scaled:
    def by(self, x):
        return 2 * x


SCALED = Scaled()


def jitted_anew(jax):
    for _ in range(4):
        jax.jit(lambda x: x + 1)(X)


def gradients_jitted_anew(jax):
    for _ in range(4):
        jax.jit(jax.grad(lambda x: (x**2).sum()))(X)


def methods_jitted_anew(jax):
    for _ in range(4):
        jax.jit(SCALED.by)(X)


def loops_of_new_bodies(jax):
    for number in range(4):
        jax.lax.fori_loop(0, 2, lambda _, x, number=number: x * number, X)


def static_numbers(jax):
    @functools.partial(jax.jit, static_argnames=["power"])
    def raised(x, power):
        return x**power

    for power in range(3, 7):
        raised(X, power=power)


def new_shapes(jax):
    added = jax.jit(lambda x: x + 1)
    for rows in range(1, 5):
        added(X[:rows])


def slices_of_other_sizes(jax):
    x = jax.numpy.asarray(X)
    for rows in range(1, 5):
        x[:, :rows]


def called_again(jax):
    added = jax.jit(lambda x: x + 1)
    for _ in range(4):
        jax.jit(added)(X)


@pytest.mark.parametrize(
    ("program", "function", "new_function", "same_tensors"),
    [
        (jitted_anew, "<lambda>", True, True),
        (gradients_jitted_anew, "<lambda>", True, True),
        (methods_jitted_anew, "by", True, True),
        (loops_of_new_bodies, "scan", True, True),
        (static_numbers, "raised", False, True),
        (new_shapes, "<lambda>", False, False),
        (slices_of_other_sizes, "dynamic_slice", False, True),
    ],
)
def test_what_is_compiled_again_is_told_by_its_line_and_by_what_is_new(program, function, new_function, same_tensors):
    fact = compiled_by(program)
    assert (
        fact is not None
        and fact.pop("seconds") > 0
        and fact.pop("line").startswith(f"{program.__name__} (test_jax_compilations.py, line ")
    )
    assert fact == {"function": function, "traces": 4, "same_tensors": same_tensors, "new_function": new_function}


def test_a_function_that_is_compiled_once_says_nothing():
    assert compiled_by(called_again) is None


def texts_written(jax, monitor):
    """Seen: every hundredth step a text was written, and each of its letters compiled the model anew."""
    scores = jax.jit(lambda letters: sum(jax.numpy.tanh(letters * each) for each in range(20)))
    added = jax.jit(lambda x: x + 1)
    for step in range(80):
        with monitor.step():
            added(X).block_until_ready()
            for length in range(1, 13) if step == 50 else ():
                scores(np.ones(length, "float32")).block_until_ready()


def layers_of_first_step(jax, monitor):
    """What a program compiles in its first step has to be."""
    for _ in range(80):
        with monitor.step():
            for length in range(1, 13):
                jax.numpy.tanh(np.ones(length + 30, "float32")).block_until_ready()


@pytest.mark.parametrize(("program", "named"), [(texts_written, True), (layers_of_first_step, False)])
def test_a_line_that_compiles_within_one_step_again_and_again_is_named(tmp_path, program, named):
    need("jax")
    import jax

    from gpu_util_callback import GpuUtilMonitor, read_recordings

    with GpuUtilMonitor(str(tmp_path), report=False) as monitor:
        program(jax, monitor)
    [recording] = read_recordings(tmp_path)
    limits = {"recompilation": {"least_s": 0.05}}
    found = diagnose(recording, limits)
    findings = [each for each in [*found["spans"], *found["findings"]] if each["cause"] == "recompilation"]
    assert bool(findings) == named
    if named:
        [finding] = findings
        assert finding["title"] == "Recompilation" and finding["evidence"]["compilations"] >= 12
        assert "calls <lambda> with arrays of new shapes, 12 in all" in finding["advice"]["text"]
        assert "texts_written (test_jax_compilations.py, line" in finding["advice"]["text"]


def compiled_by(program):
    """Return what is compiled again as a program of this file runs."""
    need("jax")
    import jax

    from gpu_util_callback.backends.jax.runtime import RUNTIME

    clock = RUNTIME.compile_clock()
    clock.start()
    try:
        program(jax)
    finally:
        clock.stop()
    return RUNTIME.retraced()
