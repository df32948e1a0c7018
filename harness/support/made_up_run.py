"""The tables and samples of a made-up run: kept as rows, diagnosed at once, written as a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from gpu_util_callback.diagnosis import Evidence, Run, judge, logdir_report, thresholds_in_force
from gpu_util_callback.recording import Clock, RecordingWriter, read_recordings
from gpu_util_callback.recording.container import Container
from gpu_util_callback.recording.manifest import process_facts
from gpu_util_callback.recording.schema import CATEGORIES, TABLES
from gpu_util_callback.recording.top import packed

MS = 1_000_000
Rows = dict[str, dict[str, np.ndarray]]
NAN = float("nan")
ACCOUNTS = {"validation": "validation", "input_setup": "input_wait", "gap": "step"}


class MadeUpRun:
    """What generators of runs share; theirs are the clock, the steps and the samples."""

    facts: dict
    now: int  # ns since the epoch
    step: int

    def __init__(self) -> None:
        self._steps: list[dict[str, np.ndarray]] = []
        self._validation: list[dict[str, np.ndarray]] = []
        self._rows: dict[str, list[tuple]] = {"phases": [], "pipeline": [], "kernels": [], "step_kernels": []}
        self._traced: list[dict[str, int]] = []
        self._windows = 0
        self._epochs = 0

    def samples(self) -> dict[str, dict[str, np.ndarray]]:
        raise NotImplementedError

    def _phase(
        self,
        kind: str,
        name: str,
        start_ns: int,
        end_ns: int,
        step: int | None = None,
        *,
        account: str = "",
        self_ns: int | None = None,
        count: int = 1,
    ) -> None:
        at = self.step if step is None else step
        own = end_ns - start_ns if self_ns is None else self_ns
        self._rows["phases"].append((kind, name, start_ns, end_ns, at, account, own, count))

    def _gpus_work(self, start_ns: int, end_ns: int, share: float) -> None:
        """Of this share of the time, kernels run on all GPUs."""
        raise NotImplementedError

    def phase(
        self, kind: str, seconds: float, name: str = "", *, account: str | None = None, share: float = 0.0
    ) -> None:
        """Training stands still: "validation", "callback", "checkpoint", "input_setup", "gap"."""
        end = self.now + round(seconds * 1e9)
        counted = ACCOUNTS.get(kind, "callbacks") if account is None else account
        self._phase(kind, name or kind, self.now, end, account=counted)
        self._gpus_work(self.now, end, share)
        self.now = end

    def validated(self, batches: int, each_ns: int, wait_ns: int, *, share: float, name: str = "validation") -> None:
        """A validation with its own batches, each of which waits for its input first."""
        starts = self.now + np.arange(batches) * each_ns
        rows = {"step": self.step, "start_ns": starts, "duration_ns": each_ns, "input_wait_ns": wait_ns}
        self._validation.append({name: np.broadcast_to(values, batches) for name, values in rows.items()})
        self.phase("validation", batches * each_ns / 1e9, name, share=share)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """An epoch around what happens inside; its row carries the step it ended on, as the recorder's does."""
        start = self.now
        yield
        self._epochs += 1
        self._phase("epoch", f"epoch {self._epochs}", start, self.now)

    def reading(
        self,
        *stages: tuple,
        batches: int,
        elements: int = 1,
        which: str = "train",
        buffer: tuple[float, float] = (NAN, NAN),
    ) -> None:
        """A reading of the pipeline: (stage, op, own ms per batch, parallelism, flags), root last.

        The root stands first in the table, as in the pipeline's model; the stages before it make
        `elements` for each batch, or as many as a stage names at its end. In its buffer are so many of so many batches.
        """
        for node, (stage, op, ms, parallelism, flags, *own) in enumerate(reversed(stages)):
            made = round(batches * (own[0] if own else elements if node else 1))
            place = (self.now, self.step, which, node, node - 1, stage, op)
            self._rows["pipeline"].append((*place, made, round(ms * MS * batches), parallelism, *buffer, flags))
            buffer = NAN, NAN

    def _traced_step(
        self, gpu: int, step: int, start_ns: int, length: int, parts: dict[str, int], kernels: int
    ) -> None:
        """A step of the newest window: ns by category; the rest is `kernel`."""
        row = dict.fromkeys((f"{name}_ns" for name in CATEGORIES), 0)
        row |= {f"{name}_ns": ns for name, ns in parts.items()}
        row["kernel_ns"] = max(0, length - sum(row.values()))
        busy = row["kernel_ns"] + row["collective_ns"]
        copies = sum(row[f"copy_{way}_ns"] for way in ("h2d", "d2h", "d2d"))
        self._traced.append(
            {
                "step": step,
                "gpu": gpu,
                "start_ns": start_ns,
                "duration_ns": sum(row.values()),
                **row,
                "kernel_busy_ns": busy,
                "any_busy_ns": busy + copies,
                "kernels": kernels,
                "window": self._windows,
                "batches": 1,
            }
        )

    def _kernel(self, gpus: Iterable[int], name: str, total_ms: float, tensor_core: str, count: int) -> None:
        """A kernel of the window before."""
        for gpu in gpus:
            total = round(total_ms * MS)
            each = round(total / count)
            shape = (40.0, 64.0, 500.0, 256.0)
            self._rows["kernels"].append(
                (self._windows - 1, gpu, name, "", count, total, each, each, *shape, tensor_core)
            )

    def tables(self) -> dict[str, dict[str, np.ndarray]]:
        """Every table that has rows."""
        tables = {}
        for name, parts in (("steps", self._steps), ("validation_steps", self._validation)):
            if parts:
                tables[name] = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        for name, rows in self._rows.items():
            if rows:
                columns = zip(TABLES[name], zip(*rows, strict=True), strict=True)
                tables[name] = {
                    column: np.array(values, object if isinstance(values[0], str) else None)
                    for column, values in columns
                }
        if self._traced:
            tables["traced_steps"] = {name: np.array([row[name] for row in self._traced]) for name in self._traced[0]}
        return tables

    def take(self) -> dict[str, dict[str, np.ndarray]]:
        """Every table of the rows since the last time."""
        tables = self.tables()
        for rows in (self._steps, self._validation, self._traced, *self._rows.values()):
            rows.clear()
        return tables

    def diagnose(
        self, thresholds: dict | None = None, *, tables: Rows | None = None, samples: Rows | None = None, ended=True
    ) -> dict:
        """The diagnosis of rows at once, by default of all tables and samples."""
        evidence = Evidence(self.facts.get("started_ns"))
        evidence.add(self.tables() if tables is None else tables, self.samples() if samples is None else samples)
        return judge(Run(self.facts, evidence, self.now, ended), thresholds_in_force(thresholds))

    def findings(self, cause: str = "", **how) -> list[dict]:
        """What was found, spans first; only of a cause, if one is given."""
        return findings_of(self.diagnose(**how), cause)

    def causes(self, **how) -> set[str]:
        return {one["cause"] for one in self.findings(**how)}

    def write(self, log_dir, status: str = "ended", **facts) -> str:
        """Write the recording with the real writer; returns its path. "live" and "lost" stay open.

        The process of a lost one is gone.
        """
        ended = {} if status == "lost" else {"ended_ns": self.now, "heartbeat_ns": self.now}
        gone = {**process_facts(), "pid": 2**22 - 1} if status == "lost" else {}
        writer = RecordingWriter(str(log_dir), ended | self.facts | gone | facts, clock=Clock())
        writer.sums = Evidence(writer.facts["started_ns"])
        for name, table in self.tables().items():
            writer.append(name, table)
        for group, block in self.samples().items():
            columns = [name for name in block if name != "time_ns"]
            values = np.stack([block[name] for name in columns], axis=1)
            writer.append_samples(group, columns, block["time_ns"], values)
        writer.flush()
        if status not in ("live", "lost"):
            writer.close(status)
        return writer.path


write = MadeUpRun.write


def restored(evidence: Evidence) -> Evidence:
    """The same evidence, as a reader has it from a file."""
    stored = Evidence.unpack(Container(packed(evidence.saved())), lambda error: None)
    assert stored is not None
    for group in stored.groups:
        stored.group(group)
    return stored


def findings_of(result: Mapping, cause: str = "") -> list[dict]:
    """The findings of a diagnosis or report, spans first; only of a cause, if one is given."""
    return [one for one in [*result["spans"], *result["findings"]] if cause in ("", one["cause"])]


def reported(run: MadeUpRun, log_dir, **facts) -> dict:
    """The report of a run that was written and read again."""
    write(run, log_dir, **facts)
    [found] = logdir_report(read_recordings(log_dir))["runs"]
    return found
