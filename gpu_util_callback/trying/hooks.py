"""In a child: what is called otherwise than the program says, and where its steps are seen.

Loaded by its path into a program of any environment: the standard library alone. Nothing here imports a framework;
each is changed as the program imports it.
"""

import functools
import importlib.machinery
import inspect
import itertools
import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from .imports import put_first, spec_followed_by
from .meter import WARM_STEPS, Meter

_RECORDERS = ("GpuUtilCallback", "GpuUtilTrainerCallback", "RemoteMonitor")
# Classes that are no callbacks of Keras'.
_MODULE_OF_CLASS = {"TrainingArguments": "transformers.training_args", "Trainer": "lightning.pytorch.trainer.trainer"}
# Hooks of callbacks that are called once an epoch, at its end.
EPOCH_HOOKS = ("on_epoch_end", "on_test_begin", "on_test_end")
ONCE = 10**9  # calls that no training makes
_EPOCHS_OF_FIT = {"validation_freq": 1, "initial_epoch": 0, "epochs": 1}  # arguments and their defaults
UNSEEN_S = 120.0  # from a first gradient to a first step, whatever compiles or accumulates in between
RECORDINGS = "plugins/gpu_utilization/*/manifest.json"
# Module -> what each training of a framework calls, though once only where it is compiled.
_GRADIENTS = {
    "torch._tensor": "Tensor.backward",
    "jax._src.api": "vjp",
    "tensorflow.python.eager.backprop": "GradientTape.gradient",
}
_OWN_LOOP = (
    "nothing sees the steps of its own loop: put `with GpuUtilMonitor() as monitor:` around it, and go through "
    "`monitor.batches(data)`; with --change, PyTorch's loops need neither"
)
_OWN_PROCESS = "it trains in a process that it starts, where nothing is recorded: give the program that trains"
FEWEST_VALIDATED = 3  # epochs of a fit: one to warm up, one with validation, one without
_OURS = "gpu_util_callback"  # as a program imports it, beside this copy
READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
_NewArgs = Callable[[inspect.BoundArguments], dict[str, Any]]  # from a call's arguments those to set, by name


class CallsChanged:
    """A change as `trying.changes` describes it: `target`, `args`, `of`, and where `target` is a class its name."""

    def __init__(self, change: dict[str, Any]):
        self.target: str = change.get("target", "")
        self.args: dict[str, Any] = change.get("args", {})
        self.of: str = change.get("of", "")
        self.validates = any(name.startswith("validation_") for name in self.args)  # it is about validation
        self.applied = not self.target

    def args_for(self, target: str, of: str = "", bound: object = None) -> dict[str, Any]:
        """Return the arguments to set in a call; {} where the change is about another kind of call.

        Args:
            target: kind of the call, a key of `trying.changes.TARGETS`.
            of: name of the function or class that the call is about; "" = the change's own, whatever it names.
            bound: the call's arguments, not used: so that this fits `_change_args`.
        """
        if self.target != target or (self.of and self.of != of):
            return {}
        self.applied = True
        return self.args


class Hooks:
    """A finder of modules that changes each of some as soon as it is imported.

    Args:
        plan: as for `Meter`, and `change` (see `CallsChanged`).
    """

    def __init__(self, plan: dict[str, Any], meter: Meter):
        self.change = CallsChanged(plan["change"])
        self.meter = meter
        meter.was_applied = lambda: self.change.applied
        # By module: what changes it as it is imported.
        self.actions: dict[str, Callable[[Any], None]] = {
            "keras.src.callbacks.callback": self._on_callback_class,
            "keras.src.callbacks.callback_list": self._on_callback_list,
            "tf_keras.src.callbacks": self._on_tf_keras,
            "tf_keras.src.engine.training": lambda module: self._on_fit(module.Model),
            **{f"keras.src.backend.{name}.trainer": self._on_trainer for name in ("tensorflow", "jax", "torch")},
            "keras.src.dtype_policies.dtype_policy": self._on_policy,
            "tensorflow.python.data.ops.dataset_ops": self._on_datasets,
            "tensorflow.python.data.ops.readers": self._on_readers,
            "tensorflow.python.eager.polymorphic_function.eager_function_run": self._on_eager,
            "jax._src.config": self._on_jax_config,
            "torch.utils.data.dataloader": self._on_loader,
            "torch.optim.optimizer": self._on_optimizer,
            "torch._tensor": self._on_tensor,
            "torch.nn.modules.module": self._on_module,
            f"{_OURS}.monitor": self._on_monitor,
        }
        if plan.get("record"):
            self.actions = {
                f"{_OURS}.callback": lambda module: self._set_log_dir(module.GpuUtilCallback, plan["record"]),
                f"{_OURS}.monitor": lambda module: self._set_log_dir(module.GpuUtilMonitor, plan["record"]),
            }
        self.actions |= {path: functools.partial(self._on_class, name) for name, path in _MODULE_OF_CLASS.items()}
        for module, function in _GRADIENTS.items():
            self.actions[module] = functools.partial(self._on_gradient, function, self.actions.get(module, id))
        self._unseen = threading.Timer(plan.get("until", UNSEEN_S), self._end_unseen)
        self._unseen.daemon = True
        self._batch_counts: Counter[int] = Counter()  # id of a loader's dataset -> batches drawn
        self._training_id: int | None = None  # id of the one whose batches train
        self._last_id: int | None = None  # id of the one that gave the last batch
        self._optimizer_steps = 0  # of the one that trains, where no loader gives batches
        self._other_steps = 0  # in turn, by another optimizer or after batches of another loader
        self._in_fit = 0  # nesting of calls of Keras' `fit`
        self._compiled = False  # by `torch.compile`

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module as the other finders do, to be changed once it is imported."""
        action = self.actions.pop(name, None)
        if action is None:
            return None
        Path(self.meter.plan["folder"], "framework").touch()
        return spec_followed_by(action, self, name, path, target)

    # -- loops that nothing sees ------------------------------------------------------------------------

    def _on_gradient(self, function: str, action: Callable[[Any], object], module: Any) -> None:
        """After another action: end a program that computes gradients, and has no step that is seen some time later."""
        action(module)
        kind, _, name = function.rpartition(".")

        @_replaces(getattr(module, kind) if kind else module, name)
        def gradient(original: Callable, *args: Any, **kwargs: Any) -> Any:
            if self._unseen.ident is None:
                self._unseen.start()
            return original(*args, **kwargs)

    def _end_unseen(self) -> None:
        plan = self.meter.plan
        begun = Path(plan["record"]).glob(RECORDINGS) if plan.get("record") else Path(plan["folder"]).glob("claim")
        if not any(begun):
            self.meter.fail(_OWN_PROCESS if plan.get("record") and os.getppid() != plan["runner"] else _OWN_LOOP)
            os._exit(1)

    # -- calls with other arguments ------------------------------------------------------------------

    def _change_args(self, owner: Any, method: str, new_args: _NewArgs) -> None:
        """Replace a function by one that is called with other arguments: those that `new_args` returns for its own."""
        signature = inspect.signature(getattr(owner, method))

        @_replaces(owner, method)
        def call_changed(original: Callable, *args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:  # which the original explains
                return original(*args, **kwargs)
            changed = new_args(bound)  # name -> value; {} = this call stays as it is
            if not changed:
                return original(*args, **kwargs)
            for name, value in changed.items():
                parameter = signature.parameters.get(name)
                var_keyword = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
                if parameter is None and var_keyword:  # an argument that the function takes by its `**kwargs`
                    bound.arguments.setdefault(var_keyword, {})[name] = value
                else:
                    bound.arguments[name] = value
            return original(*bound.args, **bound.kwargs)

    def _on_class(self, name: str, owner: Any) -> None:
        """Change how a class is made, given it or its module."""
        if self.change.target == "class" and self.change.of == name:
            self._change_args(
                getattr(owner, name, owner), "__init__", functools.partial(self.change.args_for, "class", name)
            )

    def _set_log_dir(self, kind: type, log_dir: str) -> None:
        """Have a recorder write into the trial's log directory, wherever the program says."""
        self._change_args(kind, "__init__", lambda bound: {"log_dir": log_dir})

    # -- Keras ---------------------------------------------------------------------------------------

    def _on_callback_class(self, module: Any) -> None:
        """Change the constructors of callbacks as their classes are made."""
        hooks = self

        def init_subclass(cls: Any, **kwargs: Any) -> None:
            super(module.Callback, cls).__init_subclass__(**kwargs)
            hooks._on_class(cls.__name__, cls)

        module.Callback.__init_subclass__ = classmethod(init_subclass)

    def _on_tf_keras(self, module: Any) -> None:
        """Change Keras 2's callbacks, which exist already, and its callback list."""
        if hasattr(module, self.change.of):
            self._on_class(self.change.of, module)
        self._on_callback_list(module)

    def _on_callback_list(self, module: Any) -> None:
        """Leave callbacks out, and put the one first that reports steps to the meter."""
        self._change_args(module.CallbackList, "__init__", self._callbacks)

        @_replaces(module.CallbackList, "on_train_begin")
        def on_train_begin(original: Callable, callbacks: Any, logs: Any = None) -> None:
            put_first(callbacks, watch(module.Callback)(self.meter))
            original(callbacks, logs)

    def _callbacks(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Return the callbacks of a fit, evaluation or prediction without those that are left out, some less often."""
        given = bound.arguments.get("callbacks") or ()
        callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
        left_out = set(_RECORDERS)
        for callback in callbacks:
            name = type(callback).__name__
            if self.change.target == "without" and self.change.of == name:  # which has no arguments
                self.change.applied = True
                left_out.add(name)
            if self.change.target == "every" and self.change.of.partition(".")[0] == name:
                self.change.applied = True
                self._call_rarely(callback, self.change.of.partition(".")[2], int(self.change.args["every"]))
        return {"callbacks": [callback for callback in callbacks if type(callback).__name__ not in left_out]}

    def _call_rarely(self, callback: Any, hook: str, every: int) -> None:
        """Restrict a callback's hook to every `every`th call; one of an epoch's end to the first two and those."""
        # Restricted already, in a fit before.
        if hook in vars(callback):  # of a fit before
            return
        first = hook in EPOCH_HOOKS and every < ONCE
        if first:
            self.meter.rare_work, self.meter.rare_every = self.change.of, every
        # Numbers of the calls; 0 twice = both the first two are made.
        calls = itertools.chain([0] * first, itertools.count())

        @_replaces(callback, hook)
        def rarely(original: Callable, *args: Any, **kwargs: Any) -> None:
            if next(calls) % every == 0:
                self.meter.happens(self.change.of)
                original(*args, **kwargs)

    def _on_trainer(self, module: Any) -> None:
        """Change a backend's trainer: `TensorFlowTrainer`, and from Keras 3.16 on `Trainer`."""
        self._on_fit(next(v for n, v in vars(module).items() if n.endswith("Trainer") and n != "BaseTrainer"))

    def _on_fit(self, trainer: type) -> None:
        """Change the arguments of a trainer's `fit`, and settings of `compile` before it."""
        self._change_args(trainer, "fit", lambda bound: self._validated_early(bound, self.fit_args(bound)))

        @_replaces(trainer, "fit")
        def fit(original: Callable, model: Any, *args: Any, **kwargs: Any) -> Any:
            for name, value in self.change.args_for("compile").items():
                setattr(model, name, value)
                model.train_function = None
            self._in_fit += 1
            try:
                return original(model, *args, **kwargs)
            finally:
                self._in_fit -= 1
                self.meter.pauses()

    def fit_args(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Return the arguments to set in a call of `fit`, by name; a PyDataset's attributes are set in place.

        Args:
            bound: the call's arguments, in which those of Keras 2's `fit` are set in place.
        """
        data = bound.arguments.get("x")
        self.meter.batch_size = bound.arguments.get("batch_size") or _batch_size(data)
        argument = "validation_data" if self.change.of == "validation_data" else "x"
        changed: Any = bound.arguments.get(argument)
        if hasattr(type(changed), "__getitem__") and hasattr(changed, "on_epoch_end"):  # a PyDataset
            for name, value in self.change.args_for("PyDataset", self.change.of).items():
                if hasattr(changed, name):
                    setattr(changed, name, value)
                else:  # Keras 2 takes them in fit
                    bound.arguments[name] = value
        new_args = dict(self.change.args_for("fit"))
        as_last = self.change.target == "cache" and self.change.of in ("", "validation_data")
        if as_last and hasattr(changed, "with_options"):  # a tf.data.Dataset
            self.change.applied = True
            new_args[argument] = changed.cache()
        # Without validation there is nothing to change.
        if self.change.validates and bound.arguments.get("validation_data") is None:
            self.change.applied = bool(bound.arguments.get("validation_split"))
        if hasattr(data, "with_options"):
            new_args |= self._dataset_args(data)
        return new_args

    def _validated_early(self, bound: inspect.BoundArguments, new_args: dict[str, Any]) -> dict[str, Any]:
        """Return a fit's changed arguments so that one that validates rarely does after its first two epochs, too.

        So a few whole epochs hold both kinds, and the meter weighs them.
        """
        arguments = bound.arguments | new_args
        every, first, last = (arguments.get(n, d) for n, d in _EPOCHS_OF_FIT.items())
        if not self.meter.plan["epochs"] or self.change.target == "every" or not isinstance(every, int):
            return new_args
        if every < 2 or last - first < FEWEST_VALIDATED:
            return new_args
        self.meter.rare_work, self.meter.rare_every = "validation", every
        return new_args | {"validation_freq": [first + 1, *range(first + 2, last + 1, every)]}

    def _dataset_args(self, data: Any) -> dict[str, Any]:
        """Return the arguments of `fit` for a tf.data dataset with one more stage or options.

        {} = the dataset stays.
        """
        if self.change.args_for("prefetch"):
            return {"x": data.prefetch(self.change.args["buffer_size"])}
        if self.change.args_for("repeat"):
            return {"x": data.repeat(self.change.args["count"]), "epochs": self.change.args["epochs"]}
        if self.change.target in ("options", "map", "interleave") and self.change.args.get("options"):
            options = sys.modules["tensorflow"].data.Options()
            for name, value in self.change.args["options"].items():
                part, _, option = name.partition(".")  # "threading.private_threadpool_size", say
                setattr(getattr(options, part), option, value)
            self.change.applied |= self.change.target == "options"
            return {"x": data.with_options(options)}
        return {}

    def _on_policy(self, module: Any) -> None:
        """Set Keras' dtype policy before the first is asked for, and wherever the program sets one."""
        if self.change.target != "policy":
            return

        @_replaces(module, "dtype_policy")
        def dtype_policy(original: Callable) -> Any:
            if not self.change.applied:
                self.change.applied = True
                module.set_dtype_policy(self.change.args["name"])
            return original()

        self._change_args(module, "set_dtype_policy", lambda bound: {"policy": self.change.args["name"]})

    # -- tf.data ---------------------------------------------------------------------------------------

    def _on_datasets(self, module: Any) -> None:
        """Change the arguments of tf.data's stages, and put a cache behind the one named."""
        dataset = module.DatasetV2
        for method in ("map", "interleave"):
            self._change_args(dataset, method, functools.partial(self._stage_args, method))
        for method in ("map", "flat_map", "interleave", "filter", "batch", "padded_batch", "from_generator", "zip"):
            self._cache_behind(dataset, method)

    def _stage_args(self, method: str, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Return the changed arguments of a `map` or `interleave`."""
        args = self.change.args_for(method, _function_name(bound.arguments.get("map_func")))
        return {
            name: sys.modules["tensorflow"].data.AUTOTUNE if value == "AUTOTUNE" else value
            for name, value in args.items()
            if name != "options"
        }

    def _cache_behind(self, dataset: Any, method: str) -> None:
        """Put a cache behind a stage of tf.data if the change names it, as the tab writes: `map(decode) + batch`.

        Args:
            dataset: TensorFlow's class of datasets.
            method: of it, that makes the stage.
        """

        @_replaces(dataset, method)
        def cached_stage(original: Callable, *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            function = _function_name(args[1] if args[1:] else kwargs.get("map_func") or kwargs.get("predicate"))
            # Every name that the change may call this stage by.
            names = [method, f"{method}({function})", f"{method}({function.strip('<>')})"]  # `lambda` for `<lambda>`
            if method == "from_generator":  # the tab's word for it
                names.append("generator")
            if method == "batch":  # runs fused with the stage before it
                names += [f"{name} + batch" for name in getattr(args[0], "_stage_names", ())]
            result._stage_names = names
            if self.change.target == "cache" and self.change.of in names:
                self.change.applied = True
                result = result.cache()
                if self.change.args.get("shuffle"):  # else each epoch would have the order of the cached one
                    result = result.shuffle(10_000)
            return result

    def _on_readers(self, module: Any) -> None:
        for name in READERS:
            self._change_args(
                getattr(module, f"{name}V2"), "__init__", functools.partial(self.change.args_for, "reader", name)
            )

    def _on_eager(self, module: Any) -> None:
        if self.change.target == "eager":
            self._change_args(module, "run_functions_eagerly", lambda bound: self._switched_off("run_eagerly"))

    def _on_jax_config(self, module: Any) -> None:
        """Leave `jax.jit` on: by environment and by `jax.config.update`."""
        if self.change.target == "eager":
            os.environ.pop("JAX_DISABLE_JIT", None)
            self._change_args(
                type(module.config),
                "update",
                lambda bound: self._switched_off("val") if bound.arguments.get("name") == "jax_disable_jit" else {},
            )

    def _switched_off(self, name: str) -> dict[str, Any]:
        """Return an argument that is False, as the change that was applied."""
        self.change.applied = True
        return {name: False}

    # -- PyTorch ---------------------------------------------------------------------------------------

    def _on_loader(self, module: Any) -> None:
        """Change a DataLoader's arguments, and count the batches of the one that trains as steps."""
        self._change_args(module.DataLoader, "__init__", self._loader_args)

        @_replaces(module._BaseDataLoaderIter, "__next__")
        def next_batch(original: Callable, iterator: Any) -> Any:
            if self._in_fit or self.meter.by_monitor:  # Keras or our monitor reports the steps
                return original(iterator)
            dataset = id(iterator._dataset)
            training = dataset == self._training_id
            if training:  # before the batch is drawn: waiting for it belongs to the step
                self.meter.batch_size = _batch_size(iterator._index_sampler)
                self.meter.tick(self._batch_counts[dataset])
            try:
                batch = original(iterator)
            except StopIteration:
                if training:
                    self.meter.epoch_ends(self._batch_counts[dataset])
                    # The next optimizer step of another loader makes that one the training.
                    self._other_steps = WARM_STEPS
                raise
            self._batch_counts[dataset] += 1
            self._last_id = dataset
            return batch

        @_replaces(module.DataLoader, "__iter__")
        def iterate(original: Callable, loader: Any) -> Any:
            if id(loader.dataset) == self._training_id:
                self.meter.epoch_begins()
            return original(loader)

    def _loader_args(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        """Return the changed arguments of a DataLoader, by name; {} = none.

        Without workers, arguments that need some are reset. `whole_batches` of the change: the dataset gets the indices
        of a whole batch at once.
        """
        args = dict(self.change.args_for("DataLoader"))
        if args.pop("whole_batches", False):
            size, shuffle = bound.arguments.get("batch_size", 1), bound.arguments.get("shuffle")
            data = sys.modules["torch.utils.data"]
            dataset, seeded = bound.arguments["dataset"], bound.arguments.get("generator")
            order = data.RandomSampler(dataset, generator=seeded) if shuffle else data.SequentialSampler(dataset)
            sampler = bound.arguments.get("sampler") or order
            args |= {"sampler": data.BatchSampler(sampler, size, bool(bound.arguments.get("drop_last")))}
            args |= {"batch_size": None, "shuffle": None, "drop_last": False}
        if args and not args.get("num_workers", bound.arguments.get("num_workers", 0)):
            without = {"prefetch_factor": None, "persistent_workers": False}
            args |= {name: value for name, value in without.items() if name in bound.arguments}
        return args

    def _on_optimizer(self, module: Any) -> None:
        """Count batches of the loader that gave the last one before the first optimizer step, or that one's steps.

        Another loader or optimizer takes its place once the loader is at its end, or for as long as a warm-up.
        """

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._in_fit or self.meter.by_monitor:
                return
            source = self._last_id or id(optimizer)  # the loader's dataset; without a loader the optimizer
            self._other_steps = 0 if source == self._training_id else self._other_steps + 1
            # The first step, or another training goes on for long.
            if self._training_id is None or self._other_steps > WARM_STEPS:
                self._training_id = source
                self._batch_counts[source] += self.meter.steps
                self.meter.epoch_begins()
                self.meter.begin()
                self.meter.drain = _wait_for_cuda
            if self._training_id == id(optimizer):  # no loader's batches are counted
                self._optimizer_steps += 1
                self.meter.tick(self._optimizer_steps)

        module.register_optimizer_step_post_hook(after_step)

    def _on_tensor(self, module: Any) -> None:
        """Report the losses of a PyTorch loop to the meter."""

        @_replaces(module.Tensor, "backward")
        def backward(original: Callable, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_fit:
                self.meter.loss(lambda: tensor.detach())
            return original(tensor, *args, **kwargs)

    def _on_module(self, module: Any) -> None:
        """Compile the first module that is called in training by `torch.compile`."""
        if self.change.target != "torch.compile":
            return

        @_replaces(module.Module, "__call__")
        def call(original: Callable, layer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._compiled and layer.training and sys.modules["torch"].is_grad_enabled():
                self._compiled = self.change.applied = True
                layer.compile(**self.change.args)
            return original(layer, *args, **kwargs)

    # -- loops with our monitor ------------------------------------------------------------------------

    def _on_monitor(self, module: Any) -> None:
        """Replace our monitor by one that only counts steps."""
        self.meter.by_monitor = True
        module.GpuUtilMonitor = functools.partial(MonitorStandIn, self.meter)
        package = sys.modules.get(_OURS)
        if package is not None and "GpuUtilMonitor" in package.__dict__:
            package.__dict__["GpuUtilMonitor"] = module.GpuUtilMonitor


class MonitorStandIn:
    """The interface of `GpuUtilMonitor`: it records nothing and counts the steps."""

    def __init__(self, meter: Meter, *_: object, **__: object):
        self._meter = meter
        self._by_steps = False
        self.steps = meter.steps

    def __enter__(self) -> "MonitorStandIn":
        self._meter.begin()
        self._meter.drain = _wait_for_cuda
        return self

    def __exit__(self, *_: object) -> None:
        self._meter.pauses()

    def batches(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a dataset; each begins a step, unless the loop marks its steps by `step`."""
        self._meter.epoch_begins()
        self._meter.batch_size = _batch_size(dataset)
        for batch in dataset:
            if not self._by_steps:
                self._meter.tick(self.steps)
                self.steps += 1
            yield batch
        self._meter.epoch_ends(self.steps)

    def step(self) -> AbstractContextManager:
        """Count a step of a loop that marks them."""
        self._by_steps = True
        self._meter.tick(self.steps)
        self.steps += 1
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., AbstractContextManager]:
        """Return a method that counts nothing, `fetch` or another."""
        return lambda *args, **kwargs: nullcontext()


def _replaces(owner: Any, name: str) -> Callable[[Callable], Callable]:
    """Decorate a function that takes the place of `owner.name`; it gets the original before the arguments."""
    original = getattr(owner, name)

    def replaced(function: Callable) -> Callable:
        stand_in = functools.wraps(original)(lambda *args, **kwargs: function(original, *args, **kwargs))
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(stand_in) if is_static else stand_in)
        return stand_in

    return replaced


def watch(base: type) -> type:
    """Return a callback of Keras' that reports a fit's steps to a meter."""

    class Watch(base):
        async_safe = True  # else every step of JAX and PyTorch would wait for the device

        def __init__(self, meter: Meter):
            super().__init__()
            self.meter = meter
            self.before = meter.steps
            self.done = 0  # steps of this epoch
            self.logs: Any = None

        def on_train_begin(self, logs: Any = None) -> None:
            self.meter.begin()
            self.meter.drain = self.read_last

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.done = 0
            self.meter.epoch_begins()

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.meter.tick(self.before + batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.done, self.logs = batch + 1, logs
            self.meter.loss(lambda: (logs or {})["loss"], self.before + self.done)

        def on_test_begin(self, logs: Any = None) -> None:
            if self.done:
                self.meter.pauses(self.before + self.done)
                self.meter.happens("validation")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.meter.epoch_ends(self.before + self.done)
            self.before, self.done = self.before + self.done, 0

        def read_last(self) -> None:
            for value in (self.logs or {}).values():
                float(value)

    return Watch


def _batch_size(data: Any) -> int | None:
    """Return the batch size that a fit's or loop's data states; None = not known."""
    while data is not None:
        size = getattr(data, "batch_size", None) or getattr(data, "_batch_size", None)
        if size is not None:
            try:
                return int(size)
            except (TypeError, ValueError):  # not an attribute of ours to read
                return None
        data = getattr(data, "_input_dataset", None)  # of `tf.data`: the stage before
    return None


def _function_name(function: Any) -> str:
    """Return a function's name without `functools.partial` around it; "" if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", "")).removesuffix("V2")


def _wait_for_cuda() -> None:
    """Wait until the GPU has done what PyTorch queued."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # absent while a program still imports torch
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()
