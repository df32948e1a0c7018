"""Batches that come late by known amounts, stamped by whoever makes them."""

from __future__ import annotations

import json
import multiprocessing
import time

import numpy as np

BATCH, WIDTH = 8, 16
DELAYS_MS = (0, 2, 10, 50)
PER_DELAY = 6
# What the makers' own stamps cannot tell from a wait: a batch on its way from them to the loop.
SLACK_MS = 1.0


def report(name: str, **values) -> None:
    """Tell the test what came out."""
    print(f"RESULT {name} {json.dumps(values)}", flush=True)


def summary(recording) -> dict:
    """What tests ask of any recording."""
    steps = recording.steps
    parts = sum(
        np.maximum(steps[name], 0) for name in ("input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")
    )
    return {
        "steps": len(steps["step"]),
        "in_order": bool((steps["step"] == np.arange(len(steps["step"]))).all()),
        "fits": bool((parts <= steps["duration_ns"] + 1000).all()),
        "estimated": int((steps["estimated"] == 1).sum()),
        "compiled": np.flatnonzero(steps["compile_ns"] > 0).tolist(),
        "account": recording.account,
        "status": recording.status,
        "framework": recording.facts["framework"],
        "fit": recording.facts["fit"],
        "overhead": recording.facts["overhead"],
        "unavailable": [u["source"] for u in recording.facts["unavailable"]],
    }


class Truth:
    """When each batch was asked for and ready, and when each step's work was over.

    Times are `time.perf_counter_ns`, which all processes of a machine share; the arrays too.

    Args:
        delays_ms: how long each batch takes to be made; by default all of `DELAYS_MS` in turn.
    """

    def __init__(self, delays_ms=None):
        if delays_ms is None:
            delays_ms = [d for d in DELAYS_MS for _ in range(PER_DELAY)]
        self.delays_ms = list(delays_ms)
        n = len(self.delays_ms)
        self.started = multiprocessing.RawArray("q", n)  # a maker began with the batch
        self.ready = multiprocessing.RawArray("q", n)  # the maker was done with it
        self.wanted = multiprocessing.RawArray("q", n)  # the training loop came for the batch
        self.worked = multiprocessing.RawArray("q", n)  # the step's own work was over

    def __len__(self):
        return len(self.delays_ms)

    def make(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        first = not self.started[k]  # makers that work ahead go on with the next epoch
        if first:
            self.started[k] = time.perf_counter_ns()
        if self.delays_ms[k]:
            time.sleep(self.delays_ms[k] / 1e3)
        batch = np.full((BATCH, WIDTH), 0.1, np.float32), np.zeros((BATCH, 1), np.float32)
        if first:
            self.ready[k] = time.perf_counter_ns()
        return batch

    def batches(self):
        for k in range(len(self)):
            yield self.make(k)

    def wait_ms(self, ahead: bool) -> np.ndarray:
        """max(0, batch ready - when it could first have been used), per batch.

        A step can begin when the one before it is over. Of several steps in a call, the loop is seen
        to come for the first batch alone.

        Args:
            ahead: a batch is wanted when the loop comes for it: makers may work ahead. Else it is
                when its maker begins.
        """
        wanted = np.array(self.wanted if ahead else self.started, np.int64)
        free = np.concatenate([[0], np.array(self.worked, np.int64)[:-1]])
        return np.maximum(0, np.array(self.ready) - np.maximum(wanted, free)) / 1e6

    def making_ms(self) -> np.ndarray:
        """How long each batch took to be made."""
        return (np.array(self.ready) - np.array(self.started)) / 1e6


def mapped(truth: Truth, prefetched: bool = False, labelled: bool = True):
    """A `tf.data` pipeline whose map makes the batches; `prefetched`: TensorFlow may fetch them ahead."""
    import tensorflow as tf

    def load(k):
        make = lambda k: truth.make(int(k))  # noqa: E731
        x, y = tf.numpy_function(make, [k], (tf.float32, tf.float32))
        x = tf.ensure_shape(x, (BATCH, WIDTH))
        return (x, tf.ensure_shape(y, (BATCH, 1))) if labelled else x

    options = tf.data.Options()
    if not prefetched:
        options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.range(len(truth)).map(load).with_options(options)


def medians(values: np.ndarray) -> list[float]:
    """One median for each of `DELAYS_MS`; the first two batches of a run are left out."""
    return [float(np.median(values[max(i * PER_DELAY, 2) : (i + 1) * PER_DELAY])) for i in range(len(DELAYS_MS))]


def close(
    measured: np.ndarray,
    truth: np.ndarray,
    handed: bool,
    slack_ms: float = SLACK_MS,
    share: float = 0.05,
    most_ms: float = 3.0,
) -> bool:
    """Whether waits, batch by batch, are within a share or `slack_ms` of the truth: medians per delay.

    Args:
        handed: batches pass from thread to thread on their way to the loop, or are converted, which
            the maker's own stamps do not cover: what a batch without delay takes is allowed on top,
            up to `most_ms`.
        slack_ms: for what else cannot be told apart; see `SLACK_MS`.
    """
    off = np.array(medians(measured - truth))
    handover = min(most_ms, max(0.0, off[0])) if handed else 0.0
    allowed = np.maximum(slack_ms, share * np.array(medians(truth))) + handover
    return bool((np.abs(off) <= allowed).all())
