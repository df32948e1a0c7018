"""Calls within the steps that do not train, such as a garbage collection, on a machine without a GPU too."""

import copy
import hashlib
import json
import sys
import threading
import time
import types
from collections import defaultdict
from queue import Empty, Queue

import numpy as np
import pytest
from generated_runs import GPU, Generated, findings_of

from gpu_util_callback.backends.functions import TimedBatches
from gpu_util_callback.backends.input_calls import read_statement
from gpu_util_callback.steps import dispatch
from gpu_util_callback.steps.dispatch import (
    OWN_PYTHON,
    CalledBack,
    DispatchWatch,
    FunctionSamples,
    call_on,
    exchange_in,
    exchanges_gradients,
    goes_to,
)

PROGRAM = """\
import copy, gc, json
import torch_stand_in as torch
def step(model, x, averages):
    gc.collect()
    for e, p in zip(averages, x): e.mul_(0.9).add_(p)
    y = torch.relu(x)
    loss = model(x)
    loss.item()
    if len(x) > 3: gc.collect()
    total = float(y) + 1
    print(len(x))
    z = x @ y
    k = jax.random.split(x)
jax = type("LoadedLater", (), {})()
from gpu_util_callback import GpuUtilMonitor
monitor = GpuUtilMonitor.__new__(GpuUtilMonitor)
def loop(loader):
    for x in monitor.batches(loader):
        with monitor.step(): GpuUtilMonitor.phase(monitor, "log")
def made(text):
    return torch.tensor(json.loads(text))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "program_of_steps.py"
    path.write_text(PROGRAM)
    torch = types.ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch_stand_in", torch)
    module = types.ModuleType("program_of_steps")
    module.__file__ = str(path)
    exec(compile(PROGRAM, str(path), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (4, "gc.collect"),
        (5, "add_"),
        (6, ""),
        (7, ""),
        (8, ""),
        (9, "gc.collect"),
        (10, ""),
        (11, "print"),
        (12, ""),
        (13, ""),
        (18, ""),
        (19, ""),
        (21, "json.loads"),
    ],
)
def test_only_calls_that_are_surely_no_training_are_named(program, line, call):
    assert call_on(program.__file__, line) == call


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("kept.append(float(losses[place]))", True),
        ("total += int(counts[row, column])", True),
        ("values = [losses[i].item() for i in range(3)]", True),
        ("kept.append(float(losses[0]))", False),
        ("kept.append(float(metrics['loss']))", False),
        ("loss = float(losses.mean())", False),
        ("batch = rows[order]", False),
    ],
)
def test_lines_that_read_elements_one_by_one_are_told_by_their_source(tmp_path, line, reads):
    """Seen: "compile the step", which was compiled, for `float(losses[i])` of each of 256 samples."""
    path = tmp_path / "reads.py"
    path.write_text(line)
    assert dispatch.reads_elements(str(path), 1) is reads


def seen(monkeypatch, framework, *frames, looks=1) -> dict:
    """Return what is seen of a stack of (path, function, line), the innermost first."""
    codes = [
        (None, compile("pass", path, "exec").replace(co_name=name.split(".")[-1], co_qualname=name), line)
        for path, name, line in frames
    ]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: list(codes)})
    watch = DispatchWatch(framework, 0, lambda: True)
    watch.look()
    return watch.python_in_steps()


def test_reads_of_elements_are_named_where_jax_indexes(monkeypatch, tmp_path):
    path = tmp_path / "wines.py"
    path.write_text("kept.append(float(losses[place]))")
    own = (str(path), "train", 1)
    found = seen(monkeypatch, "jax", ("site-packages/jax/_src/array.py", "ArrayImpl.__getitem__", 9), own)
    assert (found["calls"], found["at"], found["aside"]) == (dispatch.ELEMENTS, "train (wines.py, line 1)", 1)
    waits = seen(monkeypatch, "jax", ("site-packages/jax/_src/array.py", "ArrayImpl.__float__", 9), own)
    assert waits["aside"] == 0, "it waits for the step there"
    text = looped(0.7, dispatch.ELEMENTS).findings("host_stall")[0]["advice"]
    assert "np.asarray" in text["code"] and not text["question"]


HOOKS = """\
class Net:
    def on_before_optimizer_step(self, optimizer):
        self.norms = grad_norm(self, norm_type=2)
    def on_after_backward(self):
        clip_grad_norm_(self.parameters(), 1.0)
    def on_before_zero_grad(self, optimizer):
        for p in self.parameters(): p.grad *= 0.5
    def training_step(self, batch):
        return self.loss(batch)
"""
_CALL = "site-packages/lightning/pytorch/trainer/call.py"


@pytest.mark.parametrize(
    ("caller", "line", "calls"),
    [
        (_CALL, 3, "Net.on_before_optimizer_step"),
        ("site-packages/transformers/trainer_callback.py", 3, "Net.on_before_optimizer_step"),
        ("site-packages/torch/optim/optimizer.py", 3, ""),
        (_CALL, 5, ""),  # clips
        (_CALL, 7, ""),  # changes gradients
        (_CALL, 9, ""),  # trains
    ],
)
def test_a_trainers_hook_within_a_step_does_not_train(monkeypatch, tmp_path, caller, line, calls):
    """Seen: a step with the norms of all gradients took 4.5 times as long; said was "Nothing held up training"."""
    path = tmp_path / "net.py"
    path.write_text(HOOKS)
    module = compile(HOOKS, str(path), "exec")
    made = {
        code.co_name: code
        for of in module.co_consts
        if hasattr(of, "co_consts")
        for code in of.co_consts
        if hasattr(code, "co_name")
    }
    hook = next(code for code in made.values() if line - 1 == code.co_firstlineno)
    library = compile("pass", "site-packages/lightning/pytorch/utilities/grads.py", "exec").replace(co_name="grad_norm")
    called = compile("pass", caller, "exec").replace(co_name="_call_lightning_module_hook")
    step = compile("pass", "site-packages/torch/optim/optimizer.py", "exec").replace(co_name="step")
    stack = [(None, library, 5), (None, hook, line), (None, called, 7), (None, step, 8)]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: list(stack)})
    watch = DispatchWatch("torch", 0, lambda: True)
    watch.look()
    found = watch.python_in_steps()
    assert (found["calls"], found["aside"]) == (calls, bool(calls))


_WEIGHTS, _MODULE = "site-packages/torch/nn/utils/parametrize.py", "site-packages/torch/nn/modules/module.py"
_FORWARD, _PARAMETRIZED = (_MODULE, "_call_impl", 1), (_WEIGHTS, "get_parametrized", 2)
_BACKWARD = ("site-packages/torch/autograd/__init__.py", "backward", 3)


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ([_FORWARD, _PARAMETRIZED, _FORWARD], dispatch.WEIGHTS),
        ([_FORWARD, (_WEIGHTS, "get_cached_parametrization", 4), _PARAMETRIZED, _FORWARD], "forward"),
        ([_FORWARD, _PARAMETRIZED, _FORWARD, _BACKWARD], "backward"),  # computed again
        ([_FORWARD, _FORWARD], "forward"),
    ],
)
def test_weights_that_are_computed_anew_are_a_part_of_the_step(monkeypatch, frames, part):
    found = seen(monkeypatch, "torch", *frames, ("net.py", "forward", 9))
    assert found["parts"] == {part: 1}


def test_equal_functions_of_two_files_are_told_apart():
    """Python compares no file names: a program's `forward` may equal one of PyTorch, and was taken for it."""
    own, library = (compile("pass", path, "exec").replace(co_name="_call_impl") for path in ("net.py", _MODULE))
    assert own == library
    for _ in range(2):
        assert (dispatch.part_of(own), dispatch.part_of(library)) == ("", "forward")


@pytest.mark.parametrize(("weights", "forward", "named"), [(0.24, 0.03, True), (0.08, 0.2, False)])
def test_steps_that_mostly_compute_parametrized_weights_are_asked_to_keep_them(weights, forward, named):
    """Seen: "Nothing held up training" of 60 orthogonal matrices a step; 6.7 times as fast with them kept."""
    run = looped(0.0, "")
    run.facts["framework"]["device"] = "cpu"
    run.facts["fit"]["python_in_steps"] |= {"parts": {dispatch.WEIGHTS: weights, "forward": forward, "backward": 0.69}}
    findings = [one for one in findings_of(run.diagnose(), cause="slow_steps") if "parametrized" in one["title"]]
    assert len(findings) == named
    for finding in findings:
        assert "parametrize.cached()" in finding["advice"]["code"] and finding["advice"]["question"]


def test_a_file_that_autograph_has_made_is_not_named():
    made = compile("pass", "/tmp/__autograph_generated_filesbt5blb7.py", "exec").replace(co_qualname="jitter")
    assert dispatch.place_of(made, 21) == "jitter"


def test_reads_of_elements_are_no_training_where_nothing_waits_for_them(program):
    assert call_on(program.__file__, 8, reads=True) == "item"
    assert call_on(program.__file__, 12, reads=True) == ""


def test_what_a_line_of_the_program_calls_is_named_by_its_package():
    """`copy.deepcopy` has frames of its own; a thread stands still in it while it is looked at."""
    inside, go_on = threading.Event(), threading.Event()

    class Copied:
        def __reduce_ex__(self, protocol):
            threading.Timer(0.05, inside.set).start()  # once this thread waits: a look within `set` sees that line
            go_on.wait(30)
            return "Copied"

    thread = threading.Thread(target=copy.deepcopy, args=([Copied()],))
    thread.start()
    assert inside.wait(30)
    watch = DispatchWatch("torch", thread.ident, lambda: True)
    watch.look(2.0)
    watch.look()
    go_on.set()
    thread.join()
    found = watch.python_in_steps()
    assert found["samples"] == 2 and found["aside"] == 1 and found["at_line"] == 1
    assert found["calls"] == "threading.Event.wait" and "__reduce_ex__" in found["at"]


@pytest.mark.parametrize(
    ("framework", "path", "function", "calls"),
    [
        ("torch", "site-packages/torch/serialization.py", "save", "torch.save"),
        ("torch", "site-packages/torch/distributed/checkpoint/state_dict_saver.py", "save", "torch.save"),
        ("tensorflow", "site-packages/keras/src/saving/saving_api.py", "save_model", "keras.save_model"),
        ("tensorflow", "site-packages/tensorflow/python/checkpoint/checkpoint.py", "save", "tensorflow.save"),
        ("torch", "site-packages/torch/nn/functional.py", "linear", ""),
        ("torch", "site-packages/torch/utils/checkpoint.py", "checkpoint", ""),  # computes activations again
        ("tensorflow", "site-packages/tensorflow/python/saved_model/load.py", "_call_attribute", ""),  # a hub's model
    ],
)
def test_a_checkpoint_is_no_part_of_what_a_framework_trains(monkeypatch, framework, path, function, calls):
    """Seen: one of two ranks saved its model every five steps, which was in no known part of a step."""
    own = compile("pass", "train.py", "exec").replace(co_name="train")
    library = compile("pass", path, "exec").replace(co_name=function, co_qualname=function)
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: [(None, library, 1), (None, own, 1)]})
    watch = DispatchWatch(framework, 0, lambda: True)
    watch.look()
    assert watch.python_in_steps()["calls"] == calls


@pytest.mark.parametrize(
    ("around", "name", "file", "function"),
    [
        ("accelerate/accelerator.py", "Accelerator.backward", "torch/autograd/__init__.py", "backward"),
        ("deepspeed/runtime/engine.py", "DeepSpeedEngine.backward", "torch/autograd/__init__.py", "backward"),
        ("lightning/fabric/fabric.py", "Fabric.backward", "torch/autograd/__init__.py", "backward"),
        ("accelerate/optimizer.py", "AcceleratedOptimizer.step", "torch/optim/adam.py", "step"),
        ("accelerate/accelerator.py", "Accelerator.clip_grad_norm_", "torch/nn/utils/clip_grad.py", "clip_grad_norm_"),
    ],
)
def test_a_library_around_the_framework_trains(monkeypatch, tmp_path, around, name, file, function):
    """Seen: "accelerate.Accelerator.backward in each step stalls training", of a healthy one."""
    path = tmp_path / "train.py"
    path.write_text(f"accelerator.{name.rpartition('.')[2]}(loss)\n")
    own = compile(path.read_text(), str(path), "exec").replace(co_name="train")
    outer = compile("pass", f"site-packages/{around}", "exec").replace(co_name=name, co_qualname=name)
    inner = compile("pass", f"site-packages/{file}", "exec").replace(co_name=function, co_qualname=function)
    frames = [(None, inner, 1), (None, outer, 1), (None, own, 1)]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: frames})
    watch = DispatchWatch("torch", 0, lambda: True)
    watch.look()
    assert watch.python_in_steps()["aside"] == 0


def looped(aside: float, calls="gc.collect", gpus=(), learned=False, step_ms=20, **steps) -> Generated:
    fit = {"loop": "custom", "input_kind": "generator"}
    facts = {"samples": 100, "aside": aside, "at": "train (train.py, line 17)", "calls": calls, "at_line": 1.0}
    facts["learned"] = learned
    run = Generated(
        seed=3, gpus=list(gpus), framework={"name": "torch", "backend": "torch"}, fit={**fit, "python_in_steps": facts}
    )
    run.steps(300, step_ms=step_ms, **steps)
    return run


@pytest.mark.parametrize("every", [4, 5, 12])
def test_calls_in_some_of_the_steps_are_asked_to_come_half_as_often(every):
    long = np.arange(300) % every == every - 1
    share = float((37 * long).sum() / (8 + 37 * long).sum())
    found = looped(share, "torch.save", step_ms=8 + 37 * long).diagnose()
    [span] = [one for one in found["spans"] if one["cause"] == "host_stall"]
    assert span["title"] == "torch.save in some steps stalls training" and span["advice"]["question"]
    assert span["lost_s"] == pytest.approx(0.037 * 300 / every, rel=0.05)
    assert "alone, at train (train.py, line 17). Is half as often enough" in span["advice"]["text"]


@pytest.mark.parametrize("times", [1, 3])
def test_what_makes_a_few_steps_long_is_no_state(times):
    long = np.isin(np.arange(300), (100, 150, 250)[:times])
    run = looped(0.5, "torch.save", step_ms=8 + long * 2400 / times)
    assert not [span for span in run.findings("host_stall") if "torch.save" in span["title"]]


@pytest.mark.parametrize("calls", ["np.array", "numpy.asarray", "torch.tensor"])
def test_an_array_made_in_each_step_is_kept_rather_than_made_seldom(calls):
    """The step works on it: what it takes to draw from a replay's priorities cannot be left out."""
    [span] = looped(0.8, calls).findings("host_stall")
    assert span["advice"]["question"] and span["saves_s"] == 0 and not span["advice"]["code"]
    assert "keep them in an array" in span["advice"]["text"] and "10th" not in span["advice"]["text"]


@pytest.mark.parametrize("calls", ["gc.collect", "copy.deepcopy", "confusion", OWN_PYTHON])
def test_they_are_named_with_their_line(calls):
    run = looped(0.8, calls)
    found = run.diagnose()
    [span] = [one for one in found["spans"] if one["cause"] == "host_stall"]
    assert found["verdict"].startswith(f"{calls} in each step stalls training: 4.8 s of 6.0 s.")
    assert span["evidence"]["own_python_at"] == "train (train.py, line 17)"
    assert span["lost_s"] == pytest.approx(4.8, rel=0.02)
    assert span["advice"]["question"] == (calls != "gc.collect")
    assert (span["saves_s"] > 0) == (calls == "gc.collect"), "what else might be left out is asked"


@pytest.mark.parametrize(
    "run",
    [
        looped(0.15),
        looped(0.8, gpus=[GPU]),  # the GPU is at work meanwhile
        looped(0.0),
    ],
)
def test_they_are_none_where_they_are_rare_or_the_gpu_works(run):
    assert not run.findings("host_stall")


def test_of_a_busy_gpu_only_the_idle_time_is_lost():
    [span] = looped(0.8, gpus=[GPU], gpu_share=0.3).findings("host_stall")
    assert span["lost_s"] == pytest.approx(0.7 * 6, rel=0.15)


@pytest.mark.parametrize("calls", ["overlap", OWN_PYTHON])
def test_what_a_step_learns_from_is_named_without_a_question_that_leaves_it_out(calls):
    """Seen: a loss that loops over boxes was offered to be computed in every tenth step."""
    [span] = looped(0.8, calls, learned=True).findings("host_stall")
    assert "Training learns from its value: it cannot be left out." in span["advice"]["text"]
    assert not span["advice"]["question"] and not span["advice"]["code"] and span["saves_s"] == 0


@pytest.mark.parametrize("learned", [True, False])
def test_of_jax_s_arrays_a_reference_is_kept_in_place_of_a_copy(learned):
    """Seen: "Training learns from its value: it cannot be left out", of what no step changes."""
    run = looped(0.8, "copy.deepcopy", learned=learned)
    run.facts["framework"] |= {"name": "jax", "backend": "jax"}
    [span] = [span for span in run.findings("host_stall") if "copy.deepcopy" in span["title"]]
    assert span["advice"]["question"] and "donate_argnums" in span["advice"]["text"]
    assert span["advice"]["code"].startswith("before = weights")


LOSSES = """\
def overlap(box, other):
    low = max(box, other)
    return low / (box + other)
def loss_of(found, wanted):
    total = 0.0
    for image in range(len(found)):
        score = overlap(found[image], wanted[image])
        total = total + (1 - score)
    return total
def forward(model, x, y):
    features = [part.scale() for part in x]
    out = model(features)
    loss = criterion(out, y)
    loss.backward()
    confusion(out, y)
    seen.append(accuracy(out, y))
    running += loss.item()
def penalties(model, tape):
    terms = []
    for weight in model.weights:
        terms.append(penalty(weight))
    shares["all"] = total = sum(terms)
    grads = tape.gradient(total, model.weights)
    averages["model"] = average(model)
    print(norm(grads))
    if norm(grads) > 9:
        log(grads)
def step(x, y):
    with GradientTape() as tape:
        loss = loss_of(
            x,
            y,
        )
        best = score(x)
    optimizer.minimize(loss, tape=tape)
    return {"best": best}
"""


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        ("overlap", {2: "out", 3: "out"}),
        ("loss_of", {6: "out", 7: "out", 9: "out"}),
        ("forward", {11: "learned", 13: "learned", 14: "learned", 15: "", 16: "", 17: ""}),
        ("penalties", {20: "learned", 21: "learned", 22: "learned", 24: "", 25: "", 26: ""}),
        ("step", {30: "learned", 32: "learned", 34: "out"}),
        ("forward", {99: ""}),
    ],
)
def test_the_value_of_a_line_is_followed_to_what_the_step_learns_from(tmp_path, function, lines):
    path = tmp_path / "losses.py"
    path.write_text(LOSSES)
    names: dict = {}
    exec(compile(LOSSES, str(path), "exec"), names)
    assert {line: goes_to(names[function].__code__, line) for line in lines} == lines


def test_stacks_are_read_before_files_whose_reading_lets_short_calls_end(monkeypatch):
    """Seen: a callback of JAX that took 29 % of the steps was met by 16 % of the samples."""
    order: list[str] = []
    for name, result in (("all_stacks", {}), ("core_s", (0.0, 0.0))):
        monkeypatch.setattr(dispatch, name, lambda *_, name=name, result=result, **__: order.append(name) or result)
    DispatchWatch("jax", threading.get_ident(), lambda: True, called_back=lambda code: None).look(1.0, 0.01)
    assert order[0] == "all_stacks" and order.count("all_stacks") == 1 and "core_s" in order


def test_the_fetch_of_a_loops_batch_is_in_no_step():
    inside, over = threading.Event(), threading.Event()

    def batches():
        inside.set()
        yield over.wait(30)

    thread = threading.Thread(target=next, args=(TimedBatches(batches()),))
    thread.start()
    assert inside.wait(30)
    watch = DispatchWatch("torch", thread.ident, lambda: True)
    watch.look()
    over.set()
    thread.join(30)
    assert not watch.facts() and not watch.python_in_steps()


OWN = """\
class Tensor:
    argmax = staticmethod(lambda axis: sorted(range(400)))
def confusion(labels, guesses):
    counts = [[0] * 5 for _ in range(5)]
    for label, guess in zip(labels, guesses):
        counts[label % 5][guess % 5] += 1
    return counts
def loop(stopped, labels, logits):
    while not stopped:
        confusion(labels, logits.argmax(1))
def inline(stopped, labels, logits):
    total = 0
    while not stopped:
        total += labels[3] * 2
def loss_of(labels, guesses):
    total = 0.0
    for label, guess in zip(labels, guesses):
        total = total + (label - guess) ** 2
    return total / len(labels)
def learns(stopped, labels, logits):
    while not stopped:
        loss = loss_of(labels, logits)
        loss and logits.backward(loss)
def computes(stopped, labels, logits):
    while not stopped:
        [].sort()
        logits.sort(key=None)
"""


def sampled(tmp_path, function: str, logits, samples: int = 60) -> dict:
    """Sample a thread that runs a function of a program as its loop."""
    path = tmp_path / "own_python.py"
    path.write_text(OWN)
    module = types.ModuleType("own_python")
    exec(compile(OWN, str(path), "exec"), vars(module))
    stopped: list[bool] = []
    run = getattr(module, function)
    given = module.Tensor() if logits is None else logits
    thread = threading.Thread(target=run, args=(stopped, list(range(4000)), given))
    thread.start()
    watch = DispatchWatch("torch", thread.ident, lambda: True, run.__code__)
    for _ in range(samples):
        time.sleep(0.001)
        watch.look()
    stopped.append(True)
    thread.join()
    return watch.python_in_steps()


def test_python_that_calls_nothing_is_named_by_its_function_with_what_its_arguments_take(tmp_path):
    facts = sampled(tmp_path, "loop", None)
    assert facts["calls"] == "confusion" and facts["at"].startswith("confusion (own_python.py, line ")
    assert facts["aside"] > 0.8, "its arguments are computed for it alone"


def test_python_in_the_loop_itself_is_named_by_its_line(tmp_path):
    facts = sampled(tmp_path, "inline", None)
    assert facts["calls"] == OWN_PYTHON and facts["at"].startswith("inline (own_python.py, line 1")
    assert facts["aside"] > 0.5


def test_python_of_the_loss_is_what_the_step_learns_from(tmp_path):
    logits = type("Logits", (list,), {"backward": list.append})(range(4000))
    facts = sampled(tmp_path, "learns", logits)
    assert facts["calls"] == "loss_of" and facts["learned"]
    assert not sampled(tmp_path, "loop", None)["learned"]


def test_calls_that_may_compute_the_model_are_no_python_of_its_own(tmp_path):
    """Sorting a million numbers in C stands for an operation of the framework."""
    facts = sampled(tmp_path, "computes", list(range(300_000)), samples=30)
    assert facts["aside"] < 0.2


@pytest.mark.parametrize(
    ("not_training", "unclear", "trains", "trains_nothing", "named"),
    [
        ({("average (x.py, line 2)", "add_"): 80.0}, 20.0, False, True, "average"),
        (
            {("average (x.py, line 2)", "add_"): 50.0, ("average (x.py, line 1)", "copy.deepcopy"): 50.0},
            0,
            False,
            True,
            "average",
        ),
        ({("average (x.py, line 1)", "copy.deepcopy"): 90.0}, 10.0, False, True, "copy.deepcopy"),
        ({("average (x.py, line 2)", "add_"): 10.0}, 90.0, False, False, "average"),
        ({("average (x.py, line 2)", "add_"): 80.0}, 20.0, True, False, "average"),  # the loop's own function
    ],
)
def test_a_function_is_named_as_a_whole_where_it_surely_does_not_train(
    not_training, unclear, trains, trains_nothing, named
):
    samples = FunctionSamples(defaultdict(float, not_training), defaultdict(float, {3: unclear}), trains)
    assert samples.trains_nothing == trains_nothing
    assert samples.named("average")[1] == named


def called_back(how: CalledBack | None, working=lambda: True) -> dict:
    """Sample a training thread that waits in C while a thread of the runtime is in Python that the step calls."""
    inside, stopped = threading.Event(), threading.Event()

    def distances():
        threading.Timer(0.05, inside.set).start()  # once this thread waits: a look within `set` sees that line
        stopped.wait(30)

    def _wrapped_callback():
        distances()

    runtime, training = threading.Thread(target=_wrapped_callback), threading.Thread(target=stopped.wait)
    runtime.start()
    training.start()
    assert inside.wait(30)
    watch = DispatchWatch("tensorflow", training.ident, working, called_back=lambda code: how)
    for _ in range(3):
        watch.look()
    stopped.set()
    runtime.join()
    training.join()
    return watch.python_in_steps()


@pytest.mark.parametrize("of_batch", [True, False, None])
def test_python_that_a_compiled_step_calls_is_seen_on_the_runtimes_thread(of_batch):
    facts = called_back(CalledBack("tf.numpy_function", of_batch))
    assert facts["calls"] == "distances" and facts["aside"] == facts["at_line"] == 1
    assert facts["through"] == "tf.numpy_function" and facts["of_batch"] is of_batch


def test_python_of_the_input_is_no_part_of_the_step():
    assert called_back(None)["aside"] == 0


@pytest.mark.parametrize(
    ("of_batch", "asks", "says"),
    [
        (True, True, "It is given the batch alone, nothing that the model computes. Does distances return the same"),
        (False, True, "which no loss uses? If so, compute it once an epoch; if not, write it with the"),
        (None, True, "return the same for a sample in each epoch, whatever the weights are?"),
    ],
)
def test_what_a_step_calls_may_be_made_once_only_if_it_needs_no_weights(of_batch, asks, says):
    run = looped(0.8, "distances")
    run.facts["fit"]["python_in_steps"] |= {"through": "tf.numpy_function", "of_batch": of_batch}
    [span] = [span for span in run.diagnose()["spans"] if span["cause"] == "host_stall"]
    assert says in span["advice"]["text"] and span["advice"]["question"] == asks
    assert "calls distances through tf.numpy_function and waits for it" in span["advice"]["text"]
    assert span["saves_s"] == 0 or asks


SLOW = """\
with self.lock:
with self._mutex, open(path) as file:
guard.acquire()
with FileLock(path):
rows = np.random.choice(len(x), 32, replace=False)
order = rng.permutation(len(x))
rng.shuffle(rows)
rows = torch.randperm(len(x))[:32]
with self.connection:
with torch.no_grad():
with open(path) as file:
rows = rng.choice(len(x), 32, replace=True)
rows = np.random.choice(len(x), 32, replace=False, p=weights)
batch = x[rows]
"""


@pytest.mark.parametrize(
    ("line", "why"), list(zip(SLOW.splitlines(), ["lock"] * 4 + ["draw"] * 4 + [""] * 6, strict=True))
)
def test_lines_that_wait_for_a_lock_or_order_all_rows_are_told_by_their_source(tmp_path, line, why):
    path = tmp_path / "slow.py"
    path.write_text(f"{line}\n    pass" if line.endswith(":") else line)
    assert read_statement(compile(path.read_text(), str(path), "exec"), 1)[0] == why


# ---- exchanges between ranks -------------------------------------------------------------


def frame(path: str, name: str, source: str = "") -> tuple[int, types.CodeType, int]:
    """Return the frame of a function of this name, in a file of this path."""
    code = compile(f"def {name}(model, x):\n    pass\n    {source}", path, "exec").co_consts[0]
    return 0, code, 3


TORCH = "/env/lib/python3.11/site-packages/torch"
GATHER = [
    frame(f"{TORCH}/distributed/distributed_c10d.py", "all_gather"),
    frame(f"{TORCH}/distributed/distributed_c10d.py", "all_gather_object"),
    frame(f"{TORCH}/distributed/c10d_logger.py", "wrapper"),
]
REDUCE = frame(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce")
GRADIENTS = "torch.distributed.all_reduce\n"  # of gradients


@pytest.mark.parametrize(
    ("stack", "call"),
    [
        ([*GATHER, frame("train.py", "train")], "torch.distributed.all_gather_object"),
        ([*GATHER, frame("train.py", "train", "x.grad")], "torch.distributed.all_gather_object"),
        ([REDUCE, frame("train.py", "mean_of", "x.item()")], "torch.distributed.all_reduce"),
        (
            [REDUCE, frame("/env/site-packages/accelerate/utils.py", "gather"), frame("train.py", "train")],
            "torch.distributed.all_reduce",
        ),
        (
            [frame("/env/jax/experimental/multihost_utils.py", "process_allgather"), frame("train.py", "train")],
            "multihost_utils.process_allgather",
        ),
        ([REDUCE, frame("train.py", "average", "for p in model.parameters(): print(p.grad)")], GRADIENTS),
        ([REDUCE, frame(f"{TORCH}/distributed/fsdp/shard.py", "unshard"), frame("train.py", "train")], ""),
        ([REDUCE, frame(f"{TORCH}/nn/modules/module.py", "_call_impl"), frame("train.py", "train")], ""),
        ([frame(f"{TORCH}/functional.py", "einsum"), frame("train.py", "train")], ""),
    ],
)
def test_an_exchange_between_ranks_is_named_unless_a_framework_makes_it(stack, call):
    assert exchange_in(stack) == call.removesuffix(GRADIENTS[-1:])
    assert exchanges_gradients(stack[-1][1], exchange_in(stack)) == (call == GRADIENTS)


def test_an_exchange_in_each_step_is_asked_about():
    [span] = looped(0.6, "torch.distributed.all_gather_object").findings("host_stall")
    assert "torch.distributed.all_gather_object, in train (train.py, line 17)" in span["advice"]["text"]
    assert "Do they come there at the same time, and" in span["advice"]["text"], "else the wait would move elsewhere"
    assert span["advice"]["question"] and span["saves_s"] == 0


@pytest.mark.parametrize("exchanges, count", [(160, 1), (8, 1), (2, 0), (None, 0)])
def test_gradients_that_are_exchanged_one_by_one_are_a_finding(exchanges, count):
    """Seen: silent, or a sentence within an all-clear, where 160 of them took three quarters of each step."""
    run = looped(0.75, "torch.distributed.all_reduce", learned=True)
    run.facts["fit"]["dispatch"] = {"samples": 100, "exchanges": exchanges}
    spans = run.findings("host_stall")
    assert len(spans) == count
    for span in spans:
        assert f"exchanges gradients in {exchanges} calls" in span["advice"]["text"]
        assert "DistributedDataParallel(model)" in span["advice"]["code"]
        assert span["advice"]["question"] and span["saves_range_s"][0] > 0
        assert span["threshold"]["exchanges_per_update"] <= span["evidence"]["exchanges_per_update"] == exchanges


def apart(framework: str = "torch", share: float = 0.9, gpus=(), **facts) -> Generated:
    """A run that so large a share of 100 stack samples saw in a function of the program's."""
    samples = {"samples": 100, "called": "norms", "in_called": round(100 * share), "own_at": "norms (a.py, line 9)"}
    run = Generated(seed=3, gpus=list(gpus), framework={"name": framework, "backend": framework, "device": "cpu"})
    run.facts["fit"] = {"loop": "custom", "dispatch": samples | facts}
    run.facts["fit"]["python_in_steps"] = {"samples": 100, "parts": {"backward": 0.08} if framework == "torch" else {}}
    run.steps(300, step_ms=20)
    return run


def of_two_ranks(run: Generated) -> Generated:
    run.facts["world_size"] = 2
    return run


EAGER = {"function": "norms", "eager": 14}


@pytest.mark.parametrize(
    "run, lost_s",
    [
        (apart(), 5.4),
        (apart(share=0.55), 3.3),
        (apart("tensorflow", **EAGER), 5.4),
        (apart("jax", **EAGER), None),  # it may wait there for the compiled step
    ],
)
def test_a_function_that_most_of_a_step_passes_in_is_asked_about(run, lost_s):
    """Seen: statistics of all weights in each step, of which a clause of an all-clear spoke, or nothing."""
    [span] = run.findings("host_stall")
    assert run.diagnose()["verdict"].startswith("Most of each step passes in norms")
    assert span["lost_s"] == (lost_s and pytest.approx(lost_s, rel=0.02))
    assert "in norms (a.py, line 9)" in span["advice"]["text"] and span["advice"]["question"]


@pytest.mark.parametrize(
    "run",
    [
        apart(share=0.4),
        apart("jax"),  # of the compiled step no frame shows: the function may call it
        apart("jax", function="norms", eager=2),  # one operation before it reads the loss, and waits
        apart("jax", function="step", eager=50),
        apart(gpus=[GPU]),
        of_two_ranks(apart()),  # it may wait there for the other
    ],
)
def test_other_functions_are_not(run):
    assert run.findings("host_stall") == []


# ---- Python's lock -----------------------------------------------------------------------


def beside(work: str, late_s: float | None = 1.0) -> tuple[dict, int]:
    """Sample a training thread that waits while another one does this work.

    Args:
        late_s: by how much each sample is said to come late; None = by how much it does.
    Returns: what is seen of it, and how many samples count against the other thread.
    """
    over, queue, number, text = threading.Event(), Queue(), 0, json.dumps(list(range(1000)))
    lates: list[float] = []

    def polls():
        while not over.is_set():
            try:
                queue.get_nowait()
            except Empty:
                continue

    def counts():
        nonlocal number
        while not over.is_set():
            number += sum(i for i in range(10))

    def parses():
        while not over.is_set():
            json.loads(text)

    def hashes():
        digest = hashlib.sha256()
        while not over.is_set():
            digest.update(b"a record")

    def makes_batches():
        while not over.is_set():
            queue.put(list(range(100)))

    def sleeps():
        while not over.wait(0.01):
            pass

    def blocks():
        queue.get()

    threads = threading.Thread(target=over.wait), threading.Thread(target=locals()[work])
    for thread in threads:
        thread.start()
    watch = DispatchWatch("torch", threads[0].ident, lambda: True)
    look = watch.look
    watch.look = lambda weight, late: (lates.append(late), look(weight, late if late_s is None else late_s))
    watch._pause_s = lambda: 0.01
    watch.wait(lambda seconds: time.sleep(max(0.0, seconds)) or len(lates) > 21, 30)
    watch._ran_s, watch._ready_s = 0.1, 1.0  # of the training thread, whatever the machine had for it
    seen = watch.python_in_steps()
    over.set()
    queue.put(None)
    for thread in threads:
        thread.join(30)
    return seen, sum(watch._beside.values())


@pytest.mark.parametrize("work", ["polls", "counts", "parses", "hashes"])
def test_a_thread_that_keeps_pythons_lock_is_named(work):
    seen, _ = beside(work)
    assert seen["calls"] == work and seen["beside"] > 0.45 and seen["aside"] == 0.9
    assert seen["at"].startswith(f"{work} (test_calls_in_steps.py, line ")


def test_a_sample_that_waits_for_pythons_lock_is_told_from_others():
    assert beside("counts", late_s=None)[1] > 0


@pytest.mark.parametrize("work", ["makes_batches", "sleeps", "blocks"])
def test_no_thread_is_named_that_does_not_compute_or_makes_batches(work):
    assert "beside" not in beside(work)[0]


def test_a_wait_for_input_promises_nothing_while_a_thread_keeps_the_lock():
    run = looped(0.9, calls="watch", wait_ms=10)
    run.facts["fit"]["python_in_steps"]["beside"] = 0.9
    found = run.diagnose()
    spans = {span["cause"]: span for span in found["spans"]}
    assert found["verdict"].startswith("watch on another thread stalls training: ")
    assert "keeps Python's lock on another thread" in spans["host_stall"]["advice"]["text"]
    assert spans["input_bound"]["advice"]["text"] == spans["host_stall"]["advice"]["text"]
    assert spans["input_bound"]["evidence"]["held_up_by"] == "Python's lock is kept by train (train.py, line 17)"
    assert spans["host_stall"]["saves_s"] == spans["input_bound"]["saves_s"] == 0


def test_a_librarys_decorator_is_not_what_the_program_calls():
    """Seen: "torchmetrics.wrapped_func in each step", of a metric's `compute`."""

    def decorator(function):
        def wrapped_func():
            return function()

        return wrapped_func

    def compute():
        return 1

    wrapped, own = decorator(compute).__code__, compute.__code__
    assert dispatch.callee([wrapped, wrapped, own]) == dispatch.name_of(own)
    assert dispatch.callee([wrapped]) == dispatch.name_of(wrapped)
    assert dispatch.callee([]) == ""
