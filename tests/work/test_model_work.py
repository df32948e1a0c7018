"""Where the model's work is not known, no number is made up, and the reason is given."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gpu_util_callback.backends.base import CONV, MATMUL, CountedWork, NotCounted, Runtime, einsum_multiply_adds
from gpu_util_callback.backends.input_watch import Adapter
from gpu_util_callback.recorder.model_work import BatchSizes, ModelWork
from gpu_util_callback.steps.rows import seen_batch_size, shape_signature

A100 = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "used_by_framework": True}


class InTf32(Runtime):
    """A framework that computes in TF32."""

    def tf32(self):
        return {MATMUL: True, CONV: True}


class Counting(Adapter):
    """An adapter of a framework that has counted a batch of four."""

    counted: CountedWork | None = None

    def __init__(self, name: str = "tensorflow"):
        super().__init__(name=name, runtime=InTf32())
        self.asked: list[int | None] = []

    def work(self, batch):
        self.asked.append(batch)
        return self.counted


def rows(start: int, count: int, **columns) -> dict:
    ms = 1_000_000
    number = np.arange(start, start + count)
    return {
        "step": number,
        "start_ns": number * 100 * ms,
        "duration_ns": np.full(count, 100 * ms),
        "compile_ns": np.zeros(count, int),
        "shape_id": np.zeros(count, int),
        **columns,
    }


def adapted(size: int | None, **more) -> BatchSizes:
    return BatchSizes(SimpleNamespace(batch_size=size, **more), dict)


def trained(adapter: Adapter, size: int | None = 4, given: float | None = None) -> ModelWork:
    work = ModelWork(adapter, given)
    work.sizes = adapted(size)
    work.add({"steps": rows(0, 20)})
    return work


def counted(flops: int = 8_000_000, **more) -> CountedWork:
    work = CountedWork(samples=4, **more)
    work.add(MATMUL, "bfloat16", flops / 2)
    return work


def test_counted_once_and_for_the_batch_as_it_came():
    adapter = Counting()
    work = trained(adapter)
    assert "work" not in work.facts({}, [A100]), "the step is not known yet"
    adapter.counted = counted()
    for _ in range(3):
        facts = work.facts({}, [A100])
    assert adapter.asked == [4, 4]
    assert facts["work"] == {"flops_per_sample": 2e6, "source": "counted"}
    assert facts["gpus"][0]["peak"]["tflops"] == 312
    assert facts["throughput"] == {"samples": 80, "training_s": 2.0}
    assert work.rates == {"gpu0": pytest.approx(312e12 / 2e6)}


def test_compiling_is_no_training_time():
    work = ModelWork(Counting(), 1.0)
    work.sizes = adapted(4)
    compiling = np.zeros(20, int)
    compiling[0] = 60_000_000
    work.add({"steps": rows(0, 20, compile_ns=compiling)})
    assert work.facts({}, [])["throughput"]["training_s"] == pytest.approx(1.94)


def test_a_smaller_last_batch_counts_as_what_it_is():
    sizes = adapted(8, has_partial_batch=True, partial_batch_size=3, num_batches=5)
    assert sizes.of(rows(0, 10)).tolist() == [8, 8, 8, 8, 3] * 2


def test_one_batch_of_unknown_size_leaves_no_rate():
    work = trained(Counting(), size=None)
    assert "throughput" not in work.facts({}, [A100])


SHAPES = {"fit": {"input_dims": [[4, [16, 128]], [4, 1]]}}
CURE = "give flops_per_sample="


@pytest.mark.parametrize(
    ("missing", "facts", "gpu", "source", "reason", "cure"),
    [
        (["SomeOp (layer)"], {}, A100, "model FLOPs", "the work of SomeOp (layer) is not known", CURE),
        ([], SHAPES, A100, "model FLOPs", "more than one shape", CURE),
        ([], {}, A100 | {"name": "Some Accelerator"}, "MFU", "the peak of Some Accelerator is not known", ""),
    ],
)
def test_what_is_missing_is_named_and_its_cure(missing, facts, gpu, source, reason, cure):
    adapter = Counting()
    adapter.counted = counted(missing=missing)
    work = trained(adapter)
    found = work.facts(facts, [gpu])
    assert ("work" in found) == (source == "MFU") and work.rates == {}
    assert not any("peak" in one for one in found.get("gpus", []))
    [said] = work.unavailable
    assert (said["source"], said["cure"]) == (source, cure) and reason in said["reason"]
    assert "work" in trained(adapter, given=1e6).facts(facts, [gpu]), "what the user says counts"


def test_an_error_of_ours_is_a_reason():
    class Broken(Counting):
        def work(self, batch):
            raise AttributeError("moved")

    work = trained(Broken())
    work.facts({}, [A100])
    assert work.unavailable[0]["reason"] == "AttributeError: moved"


def test_a_loop_says_nothing_without_a_gpu():
    work = trained(Adapter())
    work.facts({}, [])
    assert not work.unavailable
    work.facts({}, [A100])
    assert work.unavailable[0]["source"] == "model FLOPs"


def test_gpus_that_share_the_work_and_those_that_do_not():
    adapter = Counting()
    adapter.counted = counted()
    two = [A100, {**A100, "index": 1}]
    strategy = {"fit": {"replicas": [{"gpu": 0}, {"gpu": 1}]}}
    assert set(trained(adapter).facts(strategy, two)["gpus"][1]) > set(two[1])
    alone = trained(adapter).facts({"framework": {"backend": "tensorflow"}}, two)["gpus"]
    assert "peak" in alone[0] and "peak" not in alone[1]
    unclear = trained(adapter)
    assert not any("peak" in gpu for gpu in unclear.facts({}, two)["gpus"])
    assert unclear.unavailable[0]["reason"] == "which of the GPUs trains is not known"


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("abc,cd->abd", [(2, 3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("bqhd,bkhd->bhqk", [(2, 7, 3, 4), (2, 5, 3, 4)], 2 * 7 * 5 * 3 * 4),
        ("...ij,...jk->...ik", [(6, 2, 3), (6, 3, 5)], 6 * 2 * 3 * 5),
        ("...ij,jk->...ik", [(6, 2, 3), (3, 5)], 6 * 2 * 3 * 5),
        ("ab->ba", [(2, 3)], 0),
    ],
)
def test_einsum(equation, shapes, expected):
    assert einsum_multiply_adds(equation, shapes) == expected


def test_einsum_of_an_unknown_size():
    with pytest.raises(NotCounted):
        einsum_multiply_adds("ab,bc->ac", [(None, 3), (3, 4)])


class _Spec:
    """A dataset's declaration of one array, whose batches vary in size."""

    def __init__(self, *sizes):
        self.shape = SimpleNamespace(as_list=lambda: [None, *sizes])


TensorSpec = type("TensorSpec", (_Spec,), {})
SparseTensorSpec = type("SparseTensorSpec", (_Spec,), {})


@pytest.mark.parametrize(
    "spec", [({"a": TensorSpec(4), "b": TensorSpec(3)}, TensorSpec(1)), (SparseTensorSpec(50), TensorSpec(1)), None]
)
def test_batches_that_python_saw_have_their_size_whatever_their_nest(spec):
    """On JAX and PyTorch; the number of their shapes may by chance be a multiple of anything."""
    signatures = [
        shape_signature(({"a": np.ones((n, 4)), "b": np.ones((n, 3))}, np.ones((n, 1)))) for n in range(1, 40)
    ]
    known = {signature: number for number, signature in enumerate(signatures)}
    sizes = BatchSizes(SimpleNamespace(_output_signature=spec), lambda: known)
    found = sizes.of(rows(0, 39, shape_id=np.arange(39)))
    assert found.tolist() == list(range(1, 40))


def test_a_count_that_tensorflow_stamped_is_read_only_where_it_is_one():
    def size(spec, stamp):
        sizes = BatchSizes(SimpleNamespace(_output_signature=spec), lambda: {stamp: 0})
        return sizes.of(rows(0, 1))[0]

    assert size((TensorSpec(50), TensorSpec(1)), 400.0) == 8
    # TensorFlow stamps a sparse tensor with the size of its indices.
    assert np.isnan(size((SparseTensorSpec(50), TensorSpec(1)), 400.0))
    assert np.isnan(size((TensorSpec(50), TensorSpec(1)), -400.0))


def test_arrays_that_disagree_have_no_batch_size():
    assert seen_batch_size(shape_signature((np.ones((20, 8)), np.ones((4, 1))))) is None
    assert seen_batch_size(shape_signature((np.ones((4, 8)), np.ones((4,)), np.ones(())))) == 4
