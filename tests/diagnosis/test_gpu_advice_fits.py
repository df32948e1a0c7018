"""Advice about what the GPUs do fits the run: its framework, its loop, its hardware."""

import re

import numpy as np
import pytest
from advised import apply
from advised_runs import (
    DATALOADER,
    GPU,
    JAX,
    KERAS_TORCH,
    LENGTHS,
    LOOP,
    PASCAL,
    PYDATASET,
    TENSORFLOW,
    TF_KERAS,
    TORCH,
    TURING,
    cases,
    check_line,
    compiles,
    found,
    full_memory,
    nearly_empty,
    one_gpu_of,
    plain_kernels,
    run_of,
    traced,
)

FLOATS = {"dtype": "float32", "rank": 4, "rows": 32, "bytes": 600_000, "integers": True}
ONES = FLOATS | {"min": 0.0, "max": 1.0}
IMAGES = {"input_first": [FLOATS | {"min": 0.0, "max": 255.0}]}
# cause: run, in the code ("" = no line), never in the code
RUNS = {
    "sync_bound": [
        (traced("idle_sync"), "steps_per_execution=16", "jit"),
        (traced("idle_sync", framework=JAX), "steps_per_execution=16", "item"),
        # Where Keras compiles each step of a call; batches of several shapes; a smaller last batch.
        (traced("idle_sync", framework=JAX | {"keras": "3.6.0"}), "ds.batch(128)", "steps_per_execution"),
        (traced("idle_sync", framework=JAX, input_dims=[[32, [100, 105]]]), "ds.batch(128)", "steps_per_execution"),
        (traced("idle_sync", framework=JAX, input_dims=[[[12, 32], 100]]), "steps_per_execution=16", "ds.batch"),
        (traced("idle_sync", framework=KERAS_TORCH), "ds.batch(128)", "steps_per_execution"),
        (traced("idle_sync", framework=TORCH, **LOOP), "loss.item()", "steps_per_execution"),
        (traced("idle_sync", **LOOP), "float(loss)", "model.compile"),
        (traced("idle_sync", framework=TORCH, **LOOP, trainer="transformers"), "logging_nan_inf_filter=False", "item"),
        (traced("idle_sync", framework=TORCH, **LOOP, trainer="lightning"), "self.log(", "item"),
        (traced("idle_sync", strategy="MirroredStrategy"), "ds.batch(128)", "steps_per_execution"),
        (traced("idle_sync", run_eagerly=True), "run_eagerly=False", "steps_per_execution"),
    ],
    "launch_bound": [
        (traced("idle_launch"), "jit_compile=True", "batch"),
        (traced("idle_launch", jit_compile=True), "ds.batch(128)", "jit_compile"),
        (traced("idle_launch", run_eagerly=True), "run_eagerly=False", "jit"),
        (traced("idle_launch", framework=JAX), "ds.batch(128)", "jit_compile"),
        (traced("idle_launch", framework=JAX, **LOOP), "jax.jit(", "keras"),
        (traced("idle_launch", framework=KERAS_TORCH), "ds.batch(128)", "compile"),
        (traced("idle_launch", framework=TORCH, **LOOP), "torch.compile(", "model.compile"),
        (traced("idle_launch", framework=JAX, input_kind="numpy"), "model.fit(..., batch_size=128)", "ds."),
    ],
    "transfer_bound": [
        (traced("copy_h2d"), "prefetch_to_device", "pin_memory"),
        (traced("copy_h2d", strategy="MirroredStrategy", **IMAGES), "Rescaling", "prefetch_to_device"),
        (traced("copy_h2d", input_kind="numpy", **IMAGES), "Rescaling", "prefetch"),
        (traced("copy_h2d", framework=TORCH, **DATALOADER, **LOOP), "pin_memory=True", "prefetch_to_device"),
        (
            traced("copy_h2d", framework=TORCH, input_pin_memory=True, **IMAGES, **DATALOADER, **LOOP),
            "uint8",
            "pin_memory",
        ),
        (traced("copy_h2d", framework=JAX, input_first=[ONES | {"integers": False}]), "", None),
        (traced("copy_h2d", framework=JAX, input_first=[ONES]), "", None),
        (traced("copy_h2d", framework=JAX), "", None),
        (traced("copy_h2d", framework=JAX, **IMAGES), "Rescaling", "prefetch_to_device"),
    ],
    "communication_bound": [
        (traced("collective", strategy="MirroredStrategy"), "ds.batch(128)", "gradient_accumulation_steps"),
        (traced("collective", framework=JAX), "ds.batch(128)", "gradient_accumulation_steps"),
        (traced("collective", framework=TORCH, **LOOP), "no_sync()", "keras"),
        (
            traced("collective", framework=TORCH, **LOOP),
            "if last:\n    optimizer.step()\n    optimizer.zero_grad()",
            "keras",
        ),
    ],
    "no_tensor_cores": [
        (plain_kernels(), "mixed_bfloat16", "mixed_float16"),
        (plain_kernels(TURING), "mixed_float16", "bfloat16"),
        (plain_kernels(framework=TORCH, **LOOP), "torch.autocast", "keras"),
        (plain_kernels(framework=JAX, **LOOP), "x = x.astype(jnp.bfloat16)", "keras"),
        (plain_kernels(mixed_precision="mixed_bfloat16"), "8 * math.ceil", "policy"),
    ],
    "memory_pressure": [
        (full_memory(), "ds.batch(16)", "mixed"),
        (full_memory(PASCAL), "ds.batch(16)", "mixed"),
        (full_memory(mixed_precision="mixed_float16"), "gradient_accumulation_steps=2", "mixed"),
        (full_memory(PASCAL, strategy="MirroredStrategy"), "ds.batch(16)", "gradient_accumulation_steps"),
        (full_memory(PASCAL, framework=TF_KERAS), "ds.batch(16)", "gradient_accumulation_steps"),
        (
            full_memory(framework=TORCH, retries=3, **DATALOADER, **LOOP),
            "if step % 2 == 1:\n    optimizer.step()",
            "keras",
        ),
        (full_memory(framework=TORCH, retries=3, **DATALOADER, **LOOP), "batch_size=16", "keras"),
    ],
    "small_batch": [
        (nearly_empty(0.05), "ds.batch(256)", "jit"),
        (nearly_empty(0.3), "ds.batch(64)", "256"),
        (nearly_empty(0.05, framework=TORCH, **DATALOADER), "DataLoader(dataset, ..., batch_size=256)", "ds."),
    ],
    "recompilation": [
        (compiles(input_dims=[[None, None], [None]]), "padded_batch(32", "np.pad"),
        (compiles(input_dims=[[32, [20, 60]], [32]]), "padded_shapes=([128], []), drop_remainder=True)  # 128", "512"),
        (compiles(framework=JAX, input_kind="list", input_dims=LENGTHS), "np.pad", "padded_batch"),
        (compiles(**PYDATASET, input_dims=LENGTHS), "np.pad", "ds."),
        (compiles(framework=JAX, **PYDATASET, input_dims=[[[20, 31], 16], [[20, 31]]]), "np.arange(31)", "np.pad"),
        (compiles(framework=TORCH, **DATALOADER, **LOOP), "dynamic=True", "np.pad"),
    ],
    "gpus_unused": [
        (one_gpu_of(4), "MirroredStrategy", "torchrun"),
        (one_gpu_of(4, framework=JAX), "DataParallel()", "Mirrored"),
        (one_gpu_of(4, framework=TORCH, script="run.py", **LOOP), "torchrun --nproc-per-node=4 run.py", "python"),
        (one_gpu_of(2, script="lab.train", **LOOP), "CUDA_VISIBLE_DEVICES=0 python -m lab.train", "Mirrored"),
    ],
}


@pytest.mark.parametrize("run, cause, there, never", cases(RUNS))
def test_the_line_fits_the_run(run, cause, there, never):
    check_line(run, cause, None, there, never)


def test_a_pascal_gpu_is_never_told_to_train_in_16_bits():
    run = plain_kernels(PASCAL)
    assert "no_tensor_cores" not in {one["cause"] for one in run.diagnose()["findings"]}


@pytest.mark.parametrize(
    "dims, names",
    [
        ([[[20, 31], 16], [[20, 31]]], "xy"),
        ([[8, [40, 500]], [8]], "xy"),
        ([[8, [40, 300], [40, 300], 3], [8]], "xy"),
        ([[[5, 8], [40, 300]], [[5, 8], [40, 300]]], "xy"),
        ([[[5, 8], 7]], "x"),
    ],
)
def test_the_axes_that_vary_are_made_alike_and_no_other(dims, names):
    finding = found(compiles(framework=JAX, **PYDATASET, input_dims=dims), "recompilation")
    random, seen = np.random.default_rng(0), set()
    for _ in range(40):
        batch = random.integers(*dims[0][0]) if isinstance(dims[0][0], list) else dims[0][0]
        given = {
            name: np.ones(
                [
                    batch if axis == 0 else random.integers(*size) if isinstance(size, list) else size
                    for axis, size in enumerate(sizes)
                ]
            )
            for name, sizes in zip(names, dims, strict=True)
        }
        before = {name: array.shape for name, array in given.items()}
        after = apply(finding["advice"]["code"], np=np, **given)
        shapes = tuple(after[name].shape for name in names)
        seen.add(shapes)
        for name, shape, sizes in zip(names, shapes, dims, strict=True):
            assert all(now >= was for now, was in zip(shape, before[name], strict=True))
            fixed = [axis for axis, size in enumerate(sizes) if not isinstance(size, list)]
            assert [shape[axis] for axis in fixed] == [sizes[axis] for axis in fixed]
    assert len(seen) <= 4 ** sum(isinstance(size, list) for sizes in dims for size in sizes[1:])


@pytest.mark.parametrize("longest, multiple", [(59, 32), (129, 128), (500, 128), (None, 128)])
def test_short_inputs_are_not_padded_to_long_ones(longest, multiple):
    sizes = [20, longest] if longest else None
    finding = found(compiles(framework=JAX, **PYDATASET, input_dims=[[8, sizes], [8]]), "recompilation")
    assert f"% {multiple})" in finding["advice"]["code"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "dims, code",
    [
        ([[None, 16], [None]], "ds = ds.unbatch().batch(32, drop_remainder=True)"),
        ([[None, None, None, 3], [None]], "padded_shapes=([512, 512, 3], [])"),
        ([[None, None], [None, None]], "padded_shapes=([512], [512])"),
        ([[None, None]], "padded_shapes=[512]"),
        (None, ""),
    ],
)
def test_ready_batches_of_any_rank_are_batched_again(dims, code):
    tf = pytest.importorskip("tensorflow")
    finding = found(compiles(input_dims=dims), "recompilation")
    assert code in finding["advice"]["code"] and bool(code) == bool(finding["advice"]["code"])
    if not code:
        return

    def make():
        for index in range(12):
            shapes = [[(24 + index) if size is None else size for size in one] for one in dims]
            made = tuple(tf.ones([24 + index, *shape[1:]]) for shape in shapes)
            yield made if len(made) > 1 else made[0]

    specs = tuple(tf.TensorSpec(shape) for shape in dims)
    ds = tf.data.Dataset.from_generator(make, output_signature=specs if len(specs) > 1 else specs[0])
    ds = apply(finding["advice"]["code"], ds=ds)["ds"]
    batches = [tf.nest.flatten(batch) for batch in ds]
    assert len(batches) > 5
    assert len({tuple(tuple(one.shape) for one in batch) for batch in batches}) == 1
    assert [one.shape.rank for one in batches[0]] == [len(shape) for shape in dims]


@pytest.mark.parametrize(("framework", "count"), [(JAX, 1), (TORCH, 0)])
def test_long_steps_on_new_shapes_compile_only_where_compiling_could_be_missed(framework, count):
    """Seen: an eager loop of PyTorch beside other programs was told to compile once for all shapes."""
    run = run_of(gpus=[], framework=framework, **LOOP)
    for shape in range(20):
        run.steps(1, step_ms=np.array([300.0]), shape_id=1 + shape)
        run.steps(9, step_ms=20, shape_id=0)
    assert [one["cause"] for one in run.diagnose()["spans"]].count("recompilation") == count


def test_shapes_that_stay_the_same_are_not_to_blame():
    finding = found(compiles(framework=JAX, input_dims=[[32, 16], [32]]), "recompilation")
    assert "stayed the same" in finding["advice"]["text"] and not finding["advice"]["code"]
    assert "jax.jit" not in finding["advice"]["text"]  # Keras' fit calls it


OF_JAX = {"line": "train (train.py, line 9)", "function": "scan", "traces": 38}


@pytest.mark.parametrize(
    ("new_function", "same_tensors", "says"),
    [
        (True, True, "call jax.jit once, before the loop"),
        (False, True, "static_argnames"),
        (False, False, "stayed the same"),  # of the batch: what else it gets is not known
    ],
)
def test_a_jax_loop_is_told_the_line_that_has_something_compiled(new_function, same_tensors, says):
    run = compiles(framework=JAX, input_dims=[[32, 16], [32]], **LOOP)
    run.facts["memory"] = {"retraced": OF_JAX | {"new_function": new_function, "same_tensors": same_tensors}}
    finding = found(run, "recompilation")
    assert says in finding["advice"]["text"] and not finding["advice"]["code"]
    assert ("train.py, line 9" in finding["advice"]["text"]) == (says != "stayed the same")
    assert (finding["saves_s"] > 0) == new_function  # what a trial has shown


@pytest.mark.parametrize(
    ("memory", "code", "text"),
    [
        ({"retraced": {"function": "step", "traces": 38, "same_tensors": True}}, "step(..., tf.constant(number))", ""),
        (
            {"retraced": {"function": "step", "traces": 38, "same_tensors": False}},
            "@tf.function(reduce_retracing=True)",
            "step gets tensors of new shapes",
        ),
        ({"functions_made_per_step": 0.1}, "", "makes new tf.functions"),
    ],
)
def test_a_loop_is_told_what_is_new_in_each_trace(memory, code, text):
    run = compiles(**LOOP)
    run.facts["memory"] = memory
    advice = found(run, "recompilation")["advice"]
    assert advice["code"] == code and text in advice["text"] and not advice["question"]


def test_a_compiled_model_that_counts_its_steps_is_not_told_that_its_input_changes():
    """Seen: a module with `self.n += 1` was to be compiled with dynamic=True, which changes nothing there."""
    run = compiles(framework=TORCH, **DATALOADER, **LOOP)
    changed = {"function": "self.n", "traces": 38, "same_tensors": True, "line": "train.py:7"}
    run.facts["memory"] = {"retraced": changed}
    advice = found(run, "recompilation")["advice"]
    assert "no size of a tensor: self.n (train.py:7)" in advice["text"] and not advice["code"]
    run.facts["memory"] = {"retraced": changed | {"same_tensors": False}}
    assert "dynamic=True" in found(run, "recompilation")["advice"]["code"]


BAGS = [[[45, 388], 256]]
OF_NEW_SHAPES = {"retraced": {"function": "step", "traces": 38, "same_tensors": False}}


@pytest.mark.parametrize("dims", [BAGS, [[[4, 64], 9], [[4, 64]]], LENGTHS])
def test_a_loops_function_is_traced_once_for_all_shapes_that_its_batches_are_seen_to_have(dims):
    """Seen: a bag of tiles was to be filled up with tiles that it has, which changes what is learned from it."""
    run = compiles(input_kind="list", input_dims=dims, **LOOP)
    run.facts["memory"] = OF_NEW_SHAPES
    finding = found(run, "recompilation")
    assert finding["advice"]["code"] == "@tf.function(reduce_retracing=True)"
    assert "input_signature" in finding["advice"]["text"] and not finding["advice"]["changes"]
    assert 0 < finding["saves_s"] < finding["lost_s"]  # one trace more: the one of any shape


@pytest.mark.parametrize("framework", [JAX, {"name": "tensorflow", "backend": "tensorflow", "version": "2.21.0"}])
@pytest.mark.parametrize("dims", [BAGS, [[[4, 64], 9], [[4, 64]]], [[[5, 8], [40, 300]]]])
def test_a_loops_first_axis_is_padded_and_never_filled_up(framework, dims):
    """A bag's or a sequence's parts are no samples. XLA compiles a tf.function's shapes as JAX does."""
    finding = found(compiles(framework=framework, input_kind="list", input_dims=dims, **LOOP), "recompilation")
    code = finding["advice"]["code"]
    assert "fill" not in code and "mask" in finding["advice"]["changes"] and finding["saves_s"] < finding["lost_s"]
    padded = {apply(code, np=np, x=np.ones([size, 8]), y=np.ones(size))["x"].shape[0] for size in range(5, 9)}
    assert all(size >= 8 for size in padded) and len(padded) <= 2


@pytest.mark.parametrize(
    ("memory", "facts"),
    [
        ({}, LOOP),
        ({"retraced": {"function": "other", "traces": 4, "same_tensors": True}}, LOOP),
        ({"retraced": {"function": "one_step", "traces": 38, "same_tensors": True}}, {}),  # it takes an iterator
    ],
)
def test_shapes_that_nobody_saw_are_asked_about(memory, facts):
    run = compiles(**facts)
    run.facts["memory"] = memory
    finding = found(run, "recompilation")
    assert finding["advice"]["question"] and "Do batches differ" in finding["advice"]["text"]


def test_a_larger_batch_that_does_not_fit_is_no_remedy():
    run = traced("idle_launch", framework=KERAS_TORCH)
    run.gpu_value("allocator_peak_bytes", 15, 0.7 * GPU["memory_total_bytes"])
    finding = found(run, "launch_bound")
    assert "does not fit into the GPU's memory" in finding["advice"]["text"]
    assert not finding["advice"]["code"] and finding["saves_s"] == 0


def test_compiling_what_python_starts_promises_no_upper_end():
    """178 ms became 1.03 ms on an H200 where 90 % were lost: the rest shrank as well."""
    result = traced("idle_launch", 0.9, run_eagerly=True).diagnose()
    assert result["verdict"].endswith("Fixing it could make this run at least 6.8× faster.")
    of_graph = traced("idle_launch", 0.9, framework=JAX).diagnose()
    assert re.search(r"this run [\d.]+ to [\d.]+× faster\.$", of_graph["verdict"])
    little = found(traced("idle_launch", 0.2, run_eagerly=True), "launch_bound")
    assert 0 == little["saves_range_s"][0] < little["saves_range_s"][1] <= little["lost_s"], "up to"


@pytest.mark.parametrize("framework", [TORCH, JAX, TENSORFLOW], ids=["torch loop", "JAX loop", "TensorFlow loop"])
def test_compiling_a_step_that_nobody_measured_on_a_gpu_promises_nothing(framework):
    run = traced("idle_launch", framework=framework, **LOOP)
    finding = found(run, "launch_bound")
    assert finding["advice"]["question"] and finding["saves_range_s"] is None and finding["advice"]["code"]
    assert "XLA" not in finding["advice"]["text"] and "faster." not in run.diagnose()["verdict"]
    assert "the first steps take long while it compiles" in finding["advice"]["text"]
