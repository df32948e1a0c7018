"""May kernel times be recorded in every step, by CUPTI beside a training? Ten minutes on a GPU answer it.

    python harness/cupti_probe.py --backend jax         # five minutes
    python harness/cupti_probe.py --backend torch       # five more; or tensorflow
    python harness/cupti_probe.py --backend jax --stand-in       # without a GPU: plays CUPTI, nothing is measured

What it needs is what `demo/gpu_evidence.py --help` names. One GPU is used; nobody else should. Nothing of this is in
the package: a training that breaks is worse than a number that is missing. Each question has a process of its own,
trains a small Keras model there and attaches to the libcupti that the framework has loaded:

  versions   GPU, driver, framework, CUPTI; whether it knows several subscribers (CUPTI 13.3, driver r610)
  beside     a window of the framework's profiler while we are attached, and we while it is open: what does each
             say, and what does each see; by the interface of one subscriber and that of several
  cost       time of a step with 26 small layers and with three large products, attached and not, in blocks of one fit
             in turns; before the first attachment and between them (it may stay slow); attaching, detaching, decoding
  attach     200 attachments beside a training, 40 steps each: how many broke it
  sums       kernel time a step, of all steps, against that of profiler windows and the share that GPM saw
  ends       a process that ends while attached, one that forks

Printed as they come, and kept as `cupti-<backend>.json` in --out. Exit code: 0 = all answered, whatever the answers
are; 1 = some were not (its log says why); 2 = something is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "harness" / "support", ROOT / "demo"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from cupti import KERNEL, Attachment, Cupti, CuptiError, Refused, build_standin, busy_ns, launch, loaded  # noqa: E402
from evidence.machine import described, machine, missing, one_gpu  # noqa: E402

from harness.gpu_tensorflow import candidates, library_folders  # noqa: E402

ATTACHMENTS = 200
SEVERAL_FROM = 130300  # CUPTI's version
PLAYED = {"small": (156, 67_000), "large": (3, 2_000_000)}  # kernels a step and their ns, where CUPTI is played


class Probe:
    """A training in this process, and the CUPTI beside it.

    Args:
        library: "" = the framework's, else the stand-in to be played.
        seconds: how long a measured fit may take.
    """

    def __init__(self, backend: str, library: str, seconds: float) -> None:
        os.environ["KERAS_BACKEND"] = backend
        played = Cupti(library) if library else None
        import keras

        self.keras, self.backend, self.played, self.seconds = keras, backend, bool(library), seconds
        keras.utils.set_random_seed(3)
        self.kind = "small"
        self.settle()
        self.cupti = played or Cupti(self._library())

    def _library(self) -> Path:
        known = loaded()
        if known is not None:
            return known
        names = [f"libcupti.so.{major}" for major in ("12" if self.backend == "tensorflow" else "13", "12", "13")]
        found = [path for name in names for path in candidates(name, library_folders())]
        if not found:
            raise SystemExit("no libcupti was found: neither loaded, nor among Python's packages, nor the loader's")
        return found[0]

    def settle(self) -> None:
        """Wait until the GPU has done what it was given."""
        if self.backend == "torch":
            import torch

            if torch.cuda.is_available():
                torch.cuda.synchronize()
        elif self.backend == "jax":
            import jax

            (jax.device_put(1.0) + 1).block_until_ready()
        else:
            import tensorflow as tf

            tf.test.experimental.sync_devices()

    def train(self, kind: str, steps: int, at: Callable[[int], None], *more: Any) -> float:
        """Fit a model of that kind, after four steps that compile it; `at(step)` before each step. The last loss."""
        import numpy as np

        self.kind = kind
        wide, rows = (64, 64) if kind == "small" or self.played else (8192, 8192)
        layers = self.keras.layers
        if kind == "small":
            hidden = [layers.Dense(wide, "relu") for _ in range(26)]
        else:  # of the second: its product, and those of its two gradients
            hidden = [layers.Dense(wide, use_bias=False), layers.Dense(wide, use_bias=False)]
        model = self.keras.Sequential([layers.Input((8,)), *hidden, layers.Dense(1)])
        model.compile(self.keras.optimizers.SGD(1e-6), "mse")
        rng = np.random.default_rng(5)
        x, y = rng.standard_normal((rows, 8)).astype("float32"), rng.standard_normal((rows, 1)).astype("float32")
        probe = self

        class Repeated(self.keras.utils.PyDataset):
            def __init__(self, count):
                super().__init__()
                self.count = count

            def __len__(self):
                return self.count

            def __getitem__(self, index):
                return x, y

        class Before(self.keras.callbacks.Callback):
            async_safe = True

            def on_train_batch_begin(self, batch, logs=None):
                at(batch)
                if probe.played:
                    launch(probe.cupti, PLAYED[kind][0], 1, PLAYED[kind][1])

        model.fit(Repeated(4), verbose=0)
        self.settle()
        history = model.fit(Repeated(steps), shuffle=False, verbose=0, callbacks=[*more, Before()])
        self.settle()
        return float(history.history["loss"][-1])

    def step_s(self, kind: str) -> float:
        """What a step takes, unattached."""
        steps = 60
        stamps: dict[int, float] = {}

        def at(step: int) -> None:
            if step in (10, steps - 1):
                self.settle()
                stamps[step] = time.perf_counter()

        self.train(kind, steps, at)
        return (stamps[steps - 1] - stamps[10]) / (steps - 11)

    def interfaces(self) -> list[bool]:
        """Whether for several subscribers, for each interface that this CUPTI has."""
        return [False, True] if self.cupti.version >= SEVERAL_FROM else [False]


def named(several: bool) -> str:
    return "several subscribers" if several else "one subscriber"


def tried(attempt: Callable[[], Any]) -> str:
    """ "works", or what it said."""
    try:
        attempt()
    except Refused as error:
        return f"refused: {error}" + (f"; held by {error.holder}" if error.holder else "")
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "works"


# -- the questions ----------------------------------------------------------------------------------


def versions(probe: Probe) -> dict[str, Any]:
    found: dict[str, Any] = {"library": str(probe.cupti.path), "loaded by the framework": str(loaded())}
    try:
        found["version"] = probe.cupti.version
    except CuptiError as error:
        return {**found, "version": str(error)}
    found["several subscribers"] = probe.cupti.has("cuptiActivityEnable_v2")
    for several in probe.interfaces():
        found[named(several)] = tried(lambda several=several: Attachment(probe.cupti, several).detach())
    return found


class Window:
    """The framework's own profiler, or a subscriber that plays it."""

    def __init__(self, probe: Probe) -> None:
        self.probe, self.folder = probe, tempfile.mkdtemp(prefix="window-")
        self._playing: Any = None

    def start(self) -> None:
        if self.probe.played:
            self._playing = Attachment(self.probe.cupti, self.probe.cupti.version >= SEVERAL_FROM)
        elif self.probe.backend == "torch":
            import torch

            self._playing = torch.profiler.profile()
            self._playing.start()
        elif self.probe.backend == "jax":
            import jax

            jax.profiler.start_trace(self.folder)
        else:
            import tensorflow as tf

            tf.profiler.experimental.start(self.folder)

    def stop(self) -> int | str:
        """The kernels in it, or why it cannot be read."""
        if self.probe.played:
            self._playing.detach()
            return int((self._playing.records()["kind"] == KERNEL).sum())
        if self.probe.backend == "torch":
            self._playing.stop()
            self._playing.export_chrome_trace(f"{self.folder}/host.pt.trace.json")
        elif self.probe.backend == "jax":
            import jax

            jax.profiler.stop_trace()
        else:
            import tensorflow as tf

            tf.profiler.experimental.stop()
        files = [*Path(self.folder).rglob("*.xplane.pb"), *Path(self.folder).rglob("*.pt.trace.json")]
        if not files:
            return "no file was written"
        command = [sys.executable, "-m", "gpu_util_callback", "trace", str(files[0]), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            return done.stderr[-300:]
        return sum(device["kernels"] for device in json.loads(done.stdout)["devices"])


def beside(probe: Probe, several: bool, first: str) -> dict[str, Any]:
    """One fit: "we" or "window" comes first, the other ten steps later, both stay for ten more."""
    found: dict[str, Any] = {}
    window, held = Window(probe), []

    def attach() -> None:
        found["attaching"] = tried(lambda: held.append(Attachment(probe.cupti, several)))

    def open_window() -> None:
        found["opening a window"] = tried(window.start)

    def close_window() -> None:
        if found["opening a window"] == "works":
            found["closing it"] = tried(lambda: found.update({"kernels in the window": window.stop()}))

    order = (attach, open_window) if first == "we" else (open_window, attach)
    events = {10: order[0], 20: order[1], 30: close_window}

    def at(step: int) -> None:
        if step in events:
            probe.settle()
            events[step]()

    found["loss"] = probe.train("small", 60, at)
    for attachment in held:
        found["detaching"] = tried(attachment.detach)
        found["our kernels"] = int((attachment.records()["kind"] == KERNEL).sum())
    return found


def cost(probe: Probe, several: bool) -> dict[str, Any]:
    return {kind: _cost(probe, several, kind) for kind in ("small", "large")}


def _cost(probe: Probe, several: bool, kind: str) -> dict[str, Any]:
    """Blocks of steps in turns; the first eight come before any attachment."""
    from evidence.alternation import SKIPPED, ratio

    step_s = probe.step_s(kind)
    block = max(10, int(0.4 / step_s))
    blocks = 8 + (max(8, int(probe.seconds / 2 / (block * step_s))) | 1)
    skipped = int(SKIPPED * block)
    held: list[Attachment] = []
    timed: list[tuple[bool, float]] = []
    took: dict[str, list[float]] = {"attach_ms": [], "detach_ms": [], "decode_ns_a_record": []}
    totals = {"records": 0, "kernels": 0, "dropped": 0, "attached_steps": 0}
    began = 0.0

    def clocked(name: str, call: Callable[[], Any]) -> Any:
        since = time.perf_counter()
        value = call()
        took[name].append(1e3 * (time.perf_counter() - since))
        return value

    def switch() -> None:
        if held:
            attachment = held.pop()
            clocked("detach_ms", attachment.detach)
            records = clocked("decode_ns_a_record", attachment.records)
            took["decode_ns_a_record"][-1] *= 1e6 / max(1, len(records))
            totals["records"] += len(records)
            totals["kernels"] += int((records["kind"] == KERNEL).sum())
            totals["dropped"] += attachment.dropped
            totals["attached_steps"] += block
        else:
            held.append(clocked("attach_ms", lambda: Attachment(probe.cupti, several)))

    def at(step: int) -> None:
        nonlocal began
        if step % block == 0 and step:
            probe.settle()
            timed.append((bool(held), (time.perf_counter() - began) / (block - skipped)))
            if step >= 8 * block:
                switch()
        if step % block == skipped:
            probe.settle()
            began = time.perf_counter()

    loss = probe.train(kind, blocks * block + 1, at)
    for attachment in held:
        attachment.detach()
    never, between = [s for _, s in timed[2:8]], [s for on, s in timed[8:] if not on]
    steps = max(1, totals["attached_steps"])
    return {
        "block_steps": block,
        **ratio(timed[8:]),
        "never_attached_ms": round(1e3 * statistics.median(never), 4),
        "between_ms": round(1e3 * statistics.median(between), 4) if between else None,
        **{name: round(statistics.median(values), 3) if values else None for name, values in took.items()},
        "kernels_a_step": round(totals["kernels"] / steps, 1),
        "records_a_step": round(totals["records"] / steps, 1),
        "dropped": totals["dropped"],
        "loss": loss,
    }


def attach(probe: Probe, several: bool, count: int, progress: Path) -> dict[str, Any]:
    """Attachments of twenty steps, twenty steps apart, until there were so many; `progress` is told of each."""
    held: list[Attachment] = []
    done = kernels = 0

    def at(step: int) -> None:
        nonlocal done, kernels
        if step % 20 or not step:
            return
        if held:
            attachment = held.pop()
            attachment.detach()
            kernels += int((attachment.records()["kind"] == KERNEL).sum())
            done += 1
            progress.write_text(str(done))
        else:
            held.append(Attachment(probe.cupti, several))

    loss = probe.train("small", 40 * count + 1, at)
    return {"attachments": done, "kernels": kernels, "loss": loss}


def sums(probe: Probe, several: bool) -> dict[str, Any]:
    """Two fits: one with all kernels recorded, one with profiler windows; GPM is sampled in both."""
    from gpu_util_callback import GpuUtilCallback

    found: dict[str, Any] = {}
    for kind in ("small", "large"):
        steps = max(60, int(probe.seconds / 3 / probe.step_s(kind)))
        held: list[Attachment] = []
        stamps: list[int] = []

        def at(step: int, steps: int = steps, held: list = held, stamps: list = stamps) -> None:
            if step in (10, steps - 10):
                probe.settle()
                stamps.append(probe.cupti.now_ns())
            if step == 5:
                held.append(Attachment(probe.cupti, several, buffers=64))

        folder = tempfile.mkdtemp(prefix="sums-")
        probe.train(kind, steps, at, GpuUtilCallback(f"{folder}/attached", trace="off", report=False))
        held[0].detach()
        records = held[0].records()
        records = records[(records["start_ns"] >= stamps[0]) & (records["end_ns"] <= stamps[1])]
        ranges = [(first, first + 5) for first in (steps // 3, steps // 2, 2 * steps // 3)]
        callback = GpuUtilCallback(f"{folder}/windows", trace=ranges, report=False)
        probe.train(kind, steps, lambda step: None, callback)
        found[kind] = {
            "steps": steps - 20,
            "dropped": held[0].dropped,
            "records: kernel ms a step": round(busy_ns(records) / 1e6 / (steps - 20), 4),
            "records: share of the time": round(busy_ns(records) / max(1, stamps[1] - stamps[0]), 4),
            "attached": _reported(f"{folder}/attached"),
            "windows": _reported(f"{folder}/windows"),
        }
    return found


def _reported(log_dir: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpu_util_callback", "report", log_dir, "--json"]
    run = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout)["runs"][0]
    gpus = [{key: gpu.get(key) for key in ("utilization_pct", "sm_active_pct")} for gpu in run["gpus"]]
    return {"step_ms": run["step_ms"], "traced": run["traced"], "gpus": gpus, "unavailable": run["unavailable"]}


def ends_attached(probe: Probe, several: bool) -> dict[str, Any]:
    """Ends while kernels are being recorded; the process' exit code is the answer."""

    def at(step: int) -> None:
        if step == 10:
            Attachment(probe.cupti, several)  # its hook at the end of the process keeps it

    return {"loss": probe.train("small", 40, at)}


def forks(probe: Probe, several: bool) -> dict[str, Any]:
    """A child that ends at once, and one that ends as Python does."""
    codes: list[int] = []
    held: list[Attachment] = []

    def at(step: int) -> None:
        if step == 10:
            held.append(Attachment(probe.cupti, several))
        if step in (20, 30):
            child = os.fork()
            if not child:
                if step == 20:
                    os._exit(7)
                held[0].detach()
                os._exit(8)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    loss = probe.train("small", 60, at)
    held[0].detach()
    return {"children": codes, "kernels": int((held[0].records()["kind"] == KERNEL).sum()), "loss": loss}


# -- one process each -------------------------------------------------------------------------------


def answer(args: argparse.Namespace) -> int:
    """Answer one question, in this process."""
    probe = Probe(args.backend, args.library, args.seconds)
    words = args.question.split()
    several = "several" in words
    if words[0] == "versions":
        found = versions(probe)
    elif words[0] == "beside":
        found = beside(probe, several, words[-1])
    elif words[0] == "attach":
        found = attach(probe, several, args.count, args.answer.with_suffix(".progress"))
    else:
        found = {"cost": cost, "sums": sums, "ends": ends_attached, "forks": forks}[words[0]](probe, several)
    args.answer.write_text(json.dumps(found))
    sys.stdout.flush()
    if words[0] != "ends":
        os._exit(0)  # Python's own end may hang on TensorFlow
    return 0


def ask(args: argparse.Namespace, question: str, limit_s: float, count: int = 0) -> dict[str, Any]:
    """Have a process answer a question; "ended" and "log" where it did not end well."""
    file = args.out / "answer.json"
    for left in (file, file.with_suffix(".progress")):
        left.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--backend", args.backend, "--question", question, "--answer", str(file)]
    command += ["--library", args.library, "--seconds", str(args.seconds), "--count", str(count)]
    log = args.out / f"{question.replace(' ', '-')}.log"
    with log.open("w") as output:
        try:
            ended: Any = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=max(1.0, limit_s), env=environment(args)
            ).returncode
        except subprocess.TimeoutExpired:
            ended = f"ended after {limit_s:.0f} s"
    found = json.loads(file.read_text()) if file.exists() else {}
    progress = file.with_suffix(".progress")
    if progress.exists():
        found.setdefault("attachments", int(progress.read_text() or 0))
    if ended != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        found |= {"ended": ended, "log": [line[:300] for line in lines[-6:]]}
    return found


def environment(args: argparse.Namespace) -> dict[str, str]:
    environ = {**os.environ, **one_gpu(dict(os.environ)), "TF_CPP_MIN_LOG_LEVEL": "2"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
    environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return environ


def many_attachments(args: argparse.Namespace, several: bool, until: float) -> dict[str, Any]:
    """All attachments, in one process as long as none breaks it."""
    total, broken, said = 0, 0, []
    while total < args.attachments and time.monotonic() < until:
        found = ask(
            args, f"attach {'several' if several else 'one'}", until - time.monotonic(), args.attachments - total
        )
        ended = found.get("ended", 0)
        loss = found.get("loss")
        total += found.get("attachments", 0)
        late = isinstance(ended, str)
        if (ended and not late) or (loss is not None and loss != loss):
            broken, total = broken + 1, total + 1
            said.append({"ended": ended, "loss": loss, "log": found.get("log")})
        if late or broken > 10:
            break
    return {"attachments": total, "broken": broken, "said": said}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--backend", choices=("jax", "torch", "tensorflow"), required=True, help="of Keras")
    add("--stand-in", action="store_true", help="no GPU: play CUPTI")
    add("--seconds", type=float, default=20.0, help="of a measured fit (default %(default)s)")
    add("--minutes", type=float, default=5.0, help="end after so many, with what there is (default %(default)s)")
    add("--attachments", type=int, default=ATTACHMENTS, help="how often (default %(default)s)")
    add("--only", action="append", choices=QUESTIONS, help="only this question (may be given again)")
    add("--out", type=Path, default=ROOT / "logs" / "cupti-probe")
    for hidden in ("--question", "--library"):
        add(hidden, default="", help=argparse.SUPPRESS)
    add("--answer", type=Path, help=argparse.SUPPRESS)
    add("--count", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.question:
        return answer(args)
    lacking = missing(args.backend)
    if lacking:
        print(f"not installed: pip install {' '.join(lacking)}", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    if args.stand_in:
        args.library = str(build_standin(args.out))
        print("A stand-in plays CUPTI: nothing below is measured.")
    return put_questions(args)


def put_questions(args: argparse.Namespace) -> int:
    """Ask all, print and write each answer as it comes; an exit code."""
    facts = machine(dict(os.environ))
    print(described(facts), flush=True)
    until = time.monotonic() + 60 * args.minutes
    found: dict[str, Any] = {"machine": facts, "stand_in": args.stand_in, "date": time.strftime("%Y-%m-%d")}
    unanswered = 0

    def put(name: str, one: dict[str, Any]) -> None:
        nonlocal unanswered
        unanswered += "ended" in one and name.split()[0] not in ("ends", "forks", "attach")
        found[name] = one
        (args.out / f"cupti-{args.backend}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"-- {name}: {json.dumps(one, indent=1)}", flush=True)

    def left() -> float:
        return until - time.monotonic()

    put("versions", ask(args, "versions", left()))
    known = found["versions"].get("version")
    ways = ["one", "several"] if isinstance(known, int) and known >= SEVERAL_FROM else ["one"]
    for question in args.only or QUESTIONS:
        for way in ways if isinstance(known, int) else ():
            several = way == "several"
            if left() <= 0:
                put(f"{question} {way}", {"ended": "not asked: the time was up"})
            elif question == "beside":
                for first in ("we", "window"):
                    put(f"beside {way}, first {first}", ask(args, f"beside {way} first {first}", min(90, left())))
            elif question == "attach":
                put(f"attach {way}", many_attachments(args, several, time.monotonic() + min(90, left())))
            elif question == "ends":
                for part in ("ends", "forks"):
                    put(f"{part} {way}", ask(args, f"{part} {way}", min(90, left())))
            else:
                put(f"{question} {way}", ask(args, f"{question} {way}", min(6 * args.seconds + 60, left())))
    return 1 if unanswered or not isinstance(known, int) else 0


QUESTIONS = ("beside", "cost", "attach", "sums", "ends")

if __name__ == "__main__":
    sys.exit(main())
