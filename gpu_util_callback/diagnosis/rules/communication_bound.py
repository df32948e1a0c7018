"""Communication-bound: GPUs exchange gradients while no kernels run."""

from gpu_util_callback.diagnosis.advice.snippets import enlarge_batch, has_keras_fit
from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.evidence.windows import stretches_of, traced_gpus
from gpu_util_callback.diagnosis.rule import ESTIMATED, Advice, Evidence, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import FOUR_FIFTHS, MIN_SAMPLES, MOSTLY_PCT, TRACED_PCT, Limits, Threshold
from gpu_util_callback.recording.manifest_facts import SourceFacts
from gpu_util_callback.steps.dispatch import BUFFERS

LESS_OFTEN = 4  # a quarter of the exchanges is left


class CommunicationBound(Rule):
    """Collectives not hidden by kernels take a good part of the traced steps.

    Without a trace, what takes a good part of the steps: gradients exchanged several times an update, and buffers.
    """

    cause = "communication_bound"
    title = "Communication-bound"
    look = "⇌", "teal"
    sources = ("profiler windows", "or: PyTorch's own times of DistributedDataParallel", "stack samples")
    thresholds = {
        "exposed_collective_pct": TRACED_PCT,
        "waited_pct": MOSTLY_PCT,  # of the time in collectives, in the traces of all ranks
        "exchanges_per_update": Threshold(
            3, "of several exchanges before an update only the last is needed; two may be one of two calls"
        ),
    }
    unknown = "no profiler window shows the collectives"
    unknown_in_trace = "the trace has no GPU events"

    def missing(self, run: Run) -> bool:
        sampled = ((run.fit.get("python_in_steps") or {}).get("parts") or {}).get(BUFFERS)
        return not (traced_gpus(run) or run.fit.get("exchanges") or sampled)

    def find(self, run: Run, limits: Limits) -> Findings:
        """Yield what is known without windows, then a finding for each stretch of traced steps with much of it."""
        limit = limits["exposed_collective_pct"]
        if run.source is None:  # a recording, which may have no windows; a trace has nothing else
            yield from self._untraced(run, limits)
        for share in stretches_of(run, limit, "collective"):
            evidence: Evidence = {
                "exposed_collective_pct": run.rounded(share.pct, 1),
                "collective_ms_per_step": run.rounded(share.ms_per_step, 3),
                "gpus": len(run.used_gpus) or len(share.gpus),
            }
            title = f"Communication that nothing hides takes {share.pct:.0f} % of the {share.whole}"
            late = run.source["late_rank"] if run.source is not None else None
            # In a trace of several ranks: most of the time in collectives is waiting for one of them.
            if late is not None and late["waited_pct"] >= limits["waited_pct"]:
                title = f"The GPUs wait for {late['name']} in {share.pct:.0f} % of the {share.whole}"
                evidence |= {"late_rank": late["name"], "waited_pct": late["waited_pct"]}
                advice = Advice(
                    f"Collectives take that long because {late['name']} comes last to them: see what it does "
                    "before, its input, its share of the batch, its GPU's clock. A faster link does not help."
                )
            elif run.source is not None:  # a trace in which no rank is late
                advice = _in_trace_advice(run, run.source)
            else:  # profiler windows of a recording
                evidence["world_size"] = run.manifest.get("world_size")
                advice = _advice(run)
            yield self.loss(share, advice, evidence=evidence, of_trace=title)

    def _untraced(self, run: Run, limits: Limits) -> Findings:
        """Yield the findings about gradients exchanged after each of an update's batches, and about buffers.

        `causes`: title, exposed time a step in ms, further evidence, advice; each is told if it takes enough of a step.
        """
        steps, exchanges, calls = run.steps.total_rows, run.fit.get("exchanges"), run.fit.get("python_in_steps") or {}
        causes: list[tuple[str, float, Evidence, Advice]] = []
        # Exchanges for each update of the weights, rounded down; 0 = not known.
        often = min(exchanges["count"], steps) // max(1, exchanges["updates"]) if exchanges else 0
        if exchanges and often >= limits["exchanges_per_update"]:
            advice = Advice(
                f"DistributedDataParallel exchanges gradients at least {often} times for each update of the weights. "
                "Only the last batch before an update needs it.",
                "with contextlib.nullcontext() if last else model.no_sync():  # last: optimizer.step() follows\n"
                "    loss_function(model(x), y).backward()",
                saves=1 - 1 / often,
                proof="blind/fourth/ddp_accumulates",
            )
            title, each_ms = "Gradients are exchanged several times for one update", exchanges["exposed_ms"]
            causes.append((title, each_ms, {"exchanges_per_update": often}, advice))
        if (calls.get("samples") or 0) >= MIN_SAMPLES.default:
            # The share (0-1) of the stack samples in steps that met the exchange of buffers, of the steps' own time.
            each_ms = (calls.get("parts") or {}).get(BUFFERS, 0.0) * run.steps.total("body_ns") / max(1, steps) / 1e6
            causes.append(("The model's buffers are sent to all ranks in each step", each_ms, {}, _BUFFERS_ADVICE))
        for title, each_ms, evidence, advice in causes:
            lost_ns = round(1e6 * each_ms * steps)
            pct = min(100.0, 100 * lost_ns / max(1, run.steps.total("duration_ns")))
            if pct >= limits["exposed_collective_pct"]:
                yield self.finding(
                    title=title,
                    where=run.whole,
                    lost_ns=min(lost_ns, run.steps.total("body_ns")),
                    confidence=ESTIMATED,
                    evidence=evidence
                    | {"exposed_collective_pct": round(pct, 1), "collective_ms_per_step": round(each_ms, 3)},
                    advice=advice,
                    detail="" if evidence else "buffers",
                    state=True,
                )


_BUFFERS_ADVICE = Advice(
    "Before each forward pass DistributedDataParallel sends the model's buffers from rank 0, and waits there for a "
    "slower rank too. Do all ranks have the same ones, such as masks or tables? If so, send none. This changes the "
    "statistics of BatchNorm, if there are any: they stay each rank's own.",
    "model = torch.nn.parallel.DistributedDataParallel(..., broadcast_buffers=False)",
    saves=FOUR_FIFTHS,
    question=True,
    changes="the statistics of BatchNorm, if there are any",
    proof="blind/seventh/mask_buffers",
)


def _in_trace_advice(run: Run, source: SourceFacts) -> Advice:
    """Return advice by the kind of communication that a trace shows: the one with most time on the GPUs."""
    if source["collectives"] == "all_to_all":  # sharded embeddings, experts
        return Advice(
            "Each GPU sends every other one its part of the batch (all-to-all, of sharded embeddings or experts), and "
            "each step needs it. Compute what does not need it meanwhile, send 16 bits instead of 32, and let each GPU "
            "own an equal share of the rows."
        )
    if not source["trains"]:  # inference of a model that is divided among the GPUs
        return Advice(
            "The GPUs exchange the results of their parts of each layer; no gradients are seen. "
            "Divide the model among fewer GPUs if it fits, use those with the fastest link between "
            "them, or serve larger batches, for which computing grows faster than waiting."
        )
    if source["collectives"] == "gather":  # of parameters, as FSDP does
        return Advice(
            "The GPUs gather parameters that are divided among them, for longer than the "
            "computation hides. Keep them after the forward pass, or divide them within a machine "
            "only (FSDP: SHARD_GRAD_OP, HYBRID_SHARD), and gather the next layer's ahead of time."
        )
    return _advice(run)


def _advice(run: Run) -> Advice:
    """Return advice on exchanging gradients less often: over several batches of a PyTorch loop, else larger batches."""
    text = "The GPUs exchange gradients for longer than the computation hides. "
    if run.framework == "torch" and not has_keras_fit(run):
        return Advice(
            f"{text}Add up the gradients of {LESS_OFTEN} batches, and exchange them once.",
            f"last = step % {LESS_OFTEN} == {LESS_OFTEN - 1}\n"
            "with contextlib.nullcontext() if last else model.no_sync():\n"
            f"    (loss_function(model(x), y) / {LESS_OFTEN}).backward()\n"
            "if last:\n"
            "    optimizer.step()\n"
            "    optimizer.zero_grad()",
        )
    # Keras' gradient_accumulation_steps is no remedy: it fails under tf.distribute, and on JAX the
    # gradients of each step are exchanged before they are added up.
    return enlarge_batch(
        run, text, "With a batch {larger} as large, and a higher learning rate, they exchange them {often} as often."
    )
