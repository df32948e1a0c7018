"""What torch.compile found new, where it compiles one function again and again."""

import pytest
import torch

from gpu_util_callback.backends.torch.runtime import RUNTIME


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x.sum() * self.n


def counted():
    fast = torch.compile(Counts(), backend="eager")
    return lambda step: fast(torch.ones(2))


def annealed():
    dropout = torch.nn.Dropout()
    fast = torch.compile(torch.nn.Sequential(dropout), backend="eager")

    def train(step):
        dropout.p = step / 100
        fast(torch.ones(2))

    return train


def listed():
    fast = torch.compile(lambda parts: sum(part.sum() for part in parts), backend="eager")
    return lambda step: fast([torch.ones(2)] * (step + 1))


def lengthened():
    fast = torch.compile(lambda x: x.sum(), backend="eager", dynamic=False)
    return lambda step: fast(torch.ones(step + 2))


@pytest.mark.parametrize(
    ("made", "changed", "same_tensors", "line"),
    [
        (counted, "self.n", True, "test_torch_compilations.py:15"),
        (annealed, "fn._modules['0'].p", True, "nn/modules/dropout.py:"),
        (listed, "len(parts)", True, "test_torch_compilations.py:36"),
        (lengthened, "tensor 'x' size mismatch at index 0", False, ""),
    ],
)
def test_what_was_new_each_time_is_named_with_its_line(made, changed, same_tensors, line):
    torch._dynamo.reset()
    RUNTIME.compile_clock()
    assert RUNTIME.retraced() is None  # what an earlier recording saw is not this one's
    train = made()
    for step in range(6):
        train(step)
    found = RUNTIME.retraced()
    assert (found["function"], found["traces"], found["same_tensors"]) == (changed, 5, same_tensors)
    assert line in found["line"] and bool(line) == bool(found["line"])


def test_what_is_compiled_once_for_all_shapes_is_not_named_as_compiled_again_and_again():
    torch._dynamo.reset()
    RUNTIME.compile_clock()
    fast = torch.compile(lambda x: x.sum(), backend="eager")
    for length in range(2, 12):
        fast(torch.ones(length))
    assert RUNTIME.retraced()["traces"] == 1  # the second length: the third and later ones share its code
