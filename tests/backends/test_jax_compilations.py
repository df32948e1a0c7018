"""What a JAX program has compiled again and again, and the line that calls it."""

import functools

import numpy as np
import pytest
from packages import need

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
    assert fact is not None and fact.pop("line").startswith(f"{program.__name__} (test_jax_compilations.py, line ")
    assert fact == {"function": function, "traces": 4, "same_tensors": same_tensors, "new_function": new_function}


def test_a_function_that_is_compiled_once_says_nothing():
    assert compiled_by(called_again) is None


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
