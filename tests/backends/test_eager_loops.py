"""Real loops that nothing compiles are seen, told what to add, and left as they are."""

import threading

import pytest
from generated_runs import Generated
from packages import need
from processes import shared

from gpu_util_callback.diagnosis import run_report
from gpu_util_callback.recording import read_recordings
from gpu_util_callback.steps import dispatch
from gpu_util_callback.steps.dispatch import DispatchWatch, OperationCount

pytestmark = pytest.mark.real_clock("a verdict on what real loops spend")

CASES = {
    "tensorflow": ("looks", "eager", "advised", "next", "iter", "predict", "predict_on_batch", "predict_between"),
    "jax": ("looks", "eager", "advised", "keys", "reads"),
    "torch": ("eager",),
}


def trained(framework):
    """Where the framework's loops were recorded, and the digests of their weights."""
    need(framework)
    return shared("eager_program.py", framework, *CASES[framework])


def reported(framework, case, cause="launch_bound"):
    (recording,) = read_recordings(trained(framework)[case]["log_dir"])
    report = run_report(recording)
    claims = [*report["findings"], *report["spans"]]
    return report, [claim for claim in claims if claim["cause"] == cause]


@pytest.mark.parametrize(("framework", "function"), [("tensorflow", "train_step"), ("jax", "update")])
def test_an_eager_loop_is_said_to_be_one_and_its_line_makes_the_finding_go(framework, function):
    before, (claim,) = reported(framework, "eager")
    assert "eagerly" in before["verdict"]
    assert claim["advice"]["code"].splitlines()[1] == f"def {function}(...):"
    if framework == "tensorflow":
        assert 30 <= claim["evidence"]["operations_per_step"] <= 120
    after, claims = reported(framework, "advised")
    assert claims == [] and "eagerly" not in after["verdict"]
    assert after["fit"]["dispatch"]["samples"] >= 20, "it was looked at"
    assert 2 * after["step_ms"]["p50"] < before["step_ms"]["p50"]


@pytest.mark.parametrize("mode", ["keys", "reads"])
def test_an_operation_that_waits_for_the_compiled_step_before_it_is_no_eager_step(mode):
    """JAX hands steps over: what comes next, a split of random keys or a read, sleeps until there is room."""
    report, claims = reported("jax", mode)
    # On a full machine it begins with what others took.
    calm = ("Nothing held up training", "Other programs used")
    assert claims == [] and report["verdict"].startswith(calm), report["verdict"]
    assert report["fit"]["dispatch"]["on_core"] < 0.5


@pytest.mark.parametrize("mode", ["next", "iter"])
def test_what_a_loop_fetches_between_its_steps_is_input(mode):
    report, _ = reported("tensorflow", mode)
    assert report["verdict"].startswith("Training waits for its input between the steps")
    assert report["headline"]["ids"] == ["host_stall:fetching@0"]


def test_predict_in_a_loop_sets_itself_up_and_compiles_nothing():
    report, (claim,) = reported("tensorflow", "predict", "slow_steps")
    assert report["verdict"].startswith("The steps call predict")
    assert report["time_s"]["compile"] < 0.1 * report["wall_s"], "it traces a pipeline, not a step"
    assert "model.predict_on_batch(batch)" in claim["advice"]["code"]

    weights = [trained("tensorflow")[method]["weights"] for method in ("predict", "predict_on_batch")]
    assert weights[0] == weights[1]
    after, claims = reported("tensorflow", "predict_on_batch", "slow_steps")
    assert not [claim for claim in claims if claim["id"] == "slow_steps:predict"]
    assert after["wall_s"] < report["wall_s"] - 0.65 * claim["saves_s"]


def test_predict_between_the_steps_of_a_loop_is_named():
    report, _ = reported("tensorflow", "predict_between")
    assert report["verdict"].startswith("predict is called between the steps"), report["verdict"]
    assert "Fixing it could make this run" in report["verdict"]


def test_a_loop_of_pytorch_is_eager_as_usual():
    report, claims = reported("torch", "eager")
    assert claims == []
    assert report["fit"]["dispatch"]["eager"] > 0.5 * report["fit"]["dispatch"]["samples"]
    assert 10 <= report["fit"]["dispatch"]["operations"] <= 40


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_looking_changes_no_bit(framework):
    plain, recorded, compiled, recorded_compiled = trained(framework)["looks"]["weights"]
    assert (recorded, recorded_compiled) == (plain, compiled)


def test_the_program_s_random_numbers_are_left_alone():
    import random

    random.seed(7)
    state = random.getstate()
    watch = DispatchWatch("tensorflow", 0, lambda: True)
    watch.wait(lambda seconds: False, 0.05)
    assert random.getstate() == state


def test_a_long_compilation_leaves_dense_looks_for_the_steps_behind_it(monkeypatch):
    compiles = compile("pass", "site-packages/jax/_src/compiler.py", "exec")
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: [(None, compiles, 1)]})
    watch, pauses = DispatchWatch("jax", 0, lambda: True), []
    for _ in range(1000):
        watch.look()
    watch.wait(lambda seconds: pauses.append(seconds) or True, 10)
    assert watch.facts()["samples"] == 0 and pauses[0] < 0.1


def test_samples_get_rare_and_stand_for_as_much_time(monkeypatch):
    now_s, working, looks = [1000.0], [True], []
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: []})
    watch = DispatchWatch("torch", 0, lambda: working[0])
    look = watch.look
    watch.look = lambda weight, late_s: (looks.append((now_s[0], weight)), look(weight, late_s))

    def waited(seconds):
        now_s[0] += seconds
        return False

    def of(minutes):
        """Return the number of samples in so many minutes, waited for in slices as the recorder does; their weight."""
        looks.clear()
        for _ in range(minutes * 240):
            watch.wait(waited, 0.25)
        return len(looks), sum(weight for _, weight in looks)

    assert 280 < of(1)[0] < 360  # enough of a short run
    of(4)
    count, weight = of(20)
    assert 550 < count < 650 and 0.9 < weight / (20 * 60 * 5) < 1.1
    working[0] = False  # what comes between steps is met often enough, too
    assert 280 < of(1)[0] < 320


@pytest.mark.parametrize(
    ("inside", "called"),
    [
        (["site-packages/PIL/Image.py:save"], "save_grid"),
        (["site-packages/torch/nn/modules/module.py:_call_impl"], "save_grid"),  # an evaluation
        (["site-packages/keras/src/trainers/trainer.py:predict"], "save_grid"),
        (["site-packages/torch/_tensor.py:backward"], None),  # it trains
        (["site-packages/keras/src/trainers/trainer.py:train_on_batch"], None),
    ],
)
def test_what_the_loop_calls_in_its_steps_and_does_not_train_is_named(inside, called, monkeypatch):
    def frame(place):
        file, name = place.rsplit(":", 1)
        return None, compile("pass", file, "exec").replace(co_name=name, co_qualname=name), 1

    loop = frame("gan.py:main")
    stack = [*map(frame, inside), frame("gan.py:helper"), frame("gan.py:save_grid"), loop]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stack})
    framework = "torch" if "torch" in inside[0] else "tensorflow"
    watch = DispatchWatch(framework, 0, lambda: True, loop[1])
    for _ in range(3):
        watch.look()
    facts = watch.facts()
    assert (facts["called"], facts["in_called"]) == (called, 3 if called else 0)


@pytest.mark.parametrize(("method", "counted"), [("predict", 1), ("test_on_batch", 0)])
def test_of_what_keras_calls_what_predict_makes_is_told_apart(method, counted, monkeypatch):
    made = compile("pass", "site-packages/keras/src/trainers/trainer.py", "exec")
    frames = [(None, made.replace(co_name=name), 1) for name in ("__init__", method)]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: frames})
    watch = DispatchWatch("tensorflow", 0, lambda: True)
    watch.look()
    assert watch.facts()["predict_set_up"] == counted


@pytest.mark.parametrize(
    ("framework", "path", "log"),
    [
        ("tensorflow", "site-packages/tensorboard/plugins/histogram/summary_v2.py", "tf.summary"),
        ("torch", "site-packages/torch/utils/tensorboard/writer.py", "SummaryWriter"),
        ("jax", "site-packages/wandb/sdk/wandb_run.py", "wandb"),
        ("torch", "site-packages/torch/_tensor_str.py", "str(tensor)"),
        ("jax", "site-packages/numpy/_core/arrayprint.py", "str(array)"),
    ],
)
def test_operations_that_write_a_log_are_the_logs(monkeypatch, framework, path, log):
    def made_in(file):
        return None, compile(repr(file), file, "eval"), 1

    operations = {
        "tensorflow": "site-packages/tensorflow/python/ops/gen_math_ops.py",
        "torch": "site-packages/torch/_tensor.py",
        "jax": "site-packages/jax/_src/lax/lax.py",
    }
    stack = [made_in(operations[framework]), made_in(path), made_in("train.py")]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stack})
    watch = DispatchWatch(framework, 0, lambda: True)
    watch.look()
    facts = watch.facts()
    assert facts["eager"] == 0 and watch.python_in_steps()["calls"] == log
    del stack[1]
    watch.look()
    assert watch.facts()["eager"] == 1


def test_changes_of_arrays_outside_of_jit_are_said_to_copy_them(monkeypatch):
    """Seen: "compile remember into one program", which copies a replay memory for each row that it keeps as well."""

    def made_in(file, name):
        return None, compile(repr(file + name), file, "exec").replace(co_qualname=name), 9

    library = [made_in(f"site-packages/jax/_src/{file}.py", "f") for file in ("lax/lax", "ops/scatter")]
    keep, loop = (made_in("/home/me/dqn.py", name) for name in ("keep", "main"))
    stacks = [[*library, keep, loop]] * 40 + [[library[0], loop]] * 5
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stacks.pop(0)})
    watch = DispatchWatch("jax", 0, lambda: True, loop[1])
    for _ in range(45):
        watch.look()
    run = Generated(framework={"name": "jax", "backend": "jax"})
    run.facts["fit"] = {"loop": "custom", "dispatch": watch.facts() | {"on_core": 0.9}}
    run.steps(400, step_ms=8.0)
    advised = [claim["advice"] for claim in run.findings()]
    assert advised and all("donate_argnums" in advice["code"] for advice in advised)
    assert "keep (dqn.py, line 9)" in advised[0]["text"]


def test_values_that_the_host_reads_one_by_one_are_no_eager_step(monkeypatch):
    """Seen: "the step runs eagerly" of a compiled step, after which Python read 256 losses by float(losses[i])."""

    def made_in(file, name):
        return None, compile(repr(file + name), file, "exec").replace(co_qualname=name), 9

    reads = [made_in("site-packages/jax/_src/lax/lax.py", "f"), made_in("jax/_src/array.py", "ArrayImpl.__getitem__")]
    loop = made_in("/home/me/dqn.py", "main")
    stacks = [[*reads, loop]] * 30 + [[reads[0], loop]] * 3
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stacks.pop(0)})
    watch = DispatchWatch("jax", 0, lambda: True, loop[1])
    for _ in range(33):
        watch.look()
    assert (watch.facts()["samples"], watch.facts()["eager"]) == (33, 3)


def test_a_look_into_the_program_s_own_python_notes_its_innermost_line(monkeypatch):
    def made_in(file, name, line):
        return None, compile(repr(file), file, "eval").replace(co_qualname=name), line

    loop = made_in("/home/me/train.py", "main", 40)
    decodes = made_in("site-packages/PIL/Image.py", "open", 9), made_in("/home/me/data.py", "load.<locals>.read", 17)
    stacks = [[*decodes, made_in("/home/me/train.py", "step", 30), loop]] * 2 + [[loop]]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stacks.pop(0)})
    watch = DispatchWatch("torch", 0, lambda: True, loop[1])
    for _ in range(3):
        watch.look()
    facts = watch.facts()
    assert (facts["samples"], facts["own"], facts["at_place"]) == (3, 3, 2)
    assert facts["own_at"] == "read (data.py, line 17)"


def test_a_look_between_the_steps_names_the_outermost_function_that_holds_no_step(monkeypatch):
    def made_in(file, name):
        return None, compile(repr(file), file, "eval").replace(co_qualname=name, co_name=name), 1

    module, loop, train = (made_in("/home/me/train.py", name) for name in ("<module>", "main", "train"))
    inner, test = made_in("/home/me/metrics.py", "accuracy"), made_in("/home/me/train.py", "test")
    library = made_in("site-packages/torch/nn/modules/module.py", "_call_impl")
    joins = made_in("site-packages/transformers/trainer_pt_utils.py", "nested_concat")
    evaluates = made_in("site-packages/transformers/trainer.py", "evaluate")
    looks = [
        (True, [library, train, loop]),
        (False, [library, inner, test, loop]),
        (False, [test, loop]),
        (False, [train, loop]),  # of its own
        (False, [library, loop, module]),
        (False, [test, module]),  # not below the loop
        (False, [library, joins, evaluates, loop]),
        (False, [made_in("site-packages/jax/_src/array.py", "_value"), loop]),
    ]
    stacks, working = [stack for _, stack in looks], [step for step, _ in looks for _ in range(2)]
    monkeypatch.setattr(dispatch, "all_stacks", lambda *_, **__: {0: stacks.pop(0)})
    monkeypatch.setattr(dispatch, "stack_of", lambda *_: stacks.pop(0))
    watch = DispatchWatch("torch", 0, lambda: working.pop(0), loop[1])
    for _ in looks:
        watch.look()
    facts = watch.facts()
    assert (facts["between"], facts["between_function"], facts["between_in_function"]) == (7, "test", 3)
    assert (facts["between_joining"], facts["between_reads"], facts["between_input"]) == (1, 1, 0)


def test_a_look_keeps_no_frame_alive():
    import gc
    import threading
    import weakref

    class Thing:
        pass

    gone, looked, leave = [], threading.Event(), threading.Event()

    def step():
        thing = Thing()
        gone.append(weakref.ref(thing))
        looked.wait(10)

    def train():
        step()
        leave.wait(10)

    thread = threading.Thread(target=train)
    thread.start()
    watch = DispatchWatch("tensorflow", thread.ident, lambda: True)
    gc.disable()  # a cycle would keep it until the collector came by
    try:
        while not gone:
            pass
        for _ in range(100):
            watch.look()
        looked.set()
        for _ in range(1000):
            if gone[0]() is None:
                break
            leave.wait(0.01)
        assert gone[0]() is None
    finally:
        gc.enable()
        leave.set()
        thread.join()


def test_operations_are_counted_by_the_numbers_of_the_batches():
    Tensor = type("EagerTensor", (), {})

    def batch(number):
        tensor = Tensor()
        tensor._id = number
        return ({"image": tensor}, 0)

    count = OperationCount("tensorflow")
    assert count.facts() == {"operations": None}
    for number in (10, 73, 136, 137 + 62, 199 + 900):  # the last holds a validation
        count.step(batch(number))
    assert count.facts() == {"operations": 63}
    count.begin()
    count.step(batch(99_999))
    assert count.facts() == {"operations": 63}
    count.step([1.0])  # not TensorFlow's: unknown
    assert count.facts() == {"operations": 63}
    assert not OperationCount("jax").step([1.0])


def test_exchanges_are_counted_by_the_numbers_of_the_ranks_group():
    need("torch")
    import torch

    ranks, count = torch.distributed, OperationCount("torch")
    count.step(None)
    assert "exchanges" not in count.facts(), "a lone process"
    ranks.init_process_group("gloo", store=ranks.HashStore(), rank=0, world_size=1)
    try:
        for exchanges in (3, 3, 3, 12):
            count.step(None)
            for _ in range(exchanges):
                ranks.all_reduce(torch.ones(2))
        count.step(None)
    finally:
        ranks.destroy_process_group()
    assert count.facts()["exchanges"] == 3


def test_the_parts_of_a_step_of_pytorch_are_told_apart():
    """Each is looked at from within: a closure of the optimizer's and a repeated forward are parts of their own."""
    need("torch")
    import torch
    from torch.utils.checkpoint import checkpoint

    seen: list[str] = []

    def look():
        watch = DispatchWatch("torch", threading.get_ident(), lambda: True)
        watch.look()
        seen.extend(watch.python_in_steps()["parts"] or ["none"])

    class Looks(torch.nn.Linear):
        def forward(self, x):
            look()
            y = super().forward(x)
            if y.requires_grad:
                y.register_hook(lambda gradient: look())
            return y

    class Optimizer(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            if closure is not None:
                closure()
            look()

    model, x = Looks(2, 1), torch.ones(3, 2)
    optimizer = Optimizer(model.parameters())

    def told(call) -> list[str]:
        seen.clear()
        call()
        return list(seen)

    def closure():
        model(x).sum().backward()

    assert told(closure) == ["forward", "backward"]
    assert told(optimizer.step) == ["optimizer.step"]
    assert told(lambda: optimizer.step(closure)) == ["forward", "backward", "optimizer.step"]
    theirs = torch.optim.SGD(model.parameters())
    assert told(lambda: theirs.step(look)) == ["none"], "a closure is none of its work"
    theirs.register_step_post_hook(lambda *_: look())
    assert told(theirs.step) == ["none"], "nor is a hook"
    repeated = checkpoint(model, x, use_reentrant=False)
    assert told(repeated.sum().backward) == ["backward", "backward"], "the forward is computed anew, for it"
    loss = model(x).sum()
    assert told(lambda: torch.autograd.grad(loss, model.weight)) == ["backward"]
    assert told(look) == ["none"]
    model.weight.register_post_accumulate_grad_hook(lambda weight: optimizer.step())
    assert told(closure)[-1] == "optimizer.step", "in the backward"


@pytest.mark.parametrize(
    ("path", "function", "part"),
    [
        ("keras/src/optimizers/base_optimizer.py", "apply", "optimizer.apply"),
        ("torch/optim/optimizer.py", "zero_grad", "zero_grad"),
        ("torch/nn/modules/module.py", "zero_grad", "zero_grad"),
        ("torch/optim/lr_scheduler.py", "step", ""),
        ("torch/autograd/function.py", "backward", ""),
    ],
)
def test_a_part_of_a_step_is_known_by_the_function_that_runs_it(path, function, part):
    code = compile("pass", f"/usr/lib/python3/dist-packages/{path}", "exec").replace(co_name=function)
    assert dispatch.part_of(code) == part
