"""Step times with and without recording, in alternating blocks of one fit. Children only.

Whole fits differ by more from one another than recording costs; neighbouring blocks do not. At
both ends of a block the GPU is waited for, so that work that was only queued is not counted for
done; the first steps of a block pay for the switch and are left out.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import keras
import numpy as np

from evidence.device import Device

SKIPPED = 0.2  # of a block


class Blocks(keras.callbacks.Callback):
    """Switches the recorder on and off block by block and times what lies between.

    Only `on_train_batch_begin` is used: a hook behind the batch would make Keras wait for the GPU
    in every step.

    Args:
        recorded: the callback that is switched; None = nothing is, blocks are only timed.
    """

    def __init__(self, device: Device, block: int, recorded: Any = None) -> None:
        super().__init__()
        self.device, self.block, self.recorded = device, block, recorded
        self.seconds: list[tuple[bool, float]] = []  # (on, seconds a step) of each block
        self.count = 0
        self._on = True
        self._began = 0.0
        self._listed: Any = None

    def on_train_batch_begin(self, batch, logs=None):
        at = self.count % self.block
        if at == 0 and self.count:
            self._stamp()
            if self.recorded is not None:
                self._switch()
        if at == 0:
            self._on = self.recorded is None or self.recorded_now()
        if at == int(SKIPPED * self.block):
            self.device.wait_for_model(self.model)
            self._began = time.perf_counter()
        self.count += 1

    def recorded_now(self) -> bool:
        return (self.count // self.block) % 2 == 0

    def _stamp(self) -> None:
        self.device.wait_for_model(self.model)
        steps = self.block - int(SKIPPED * self.block)
        self.seconds.append((self._on, (time.perf_counter() - self._began) / steps))

    def _switch(self) -> None:
        session = self.recorded._session
        if session is None:
            raise RuntimeError("the callback has stopped recording")
        recorder, listed = session.recorder, self._listed
        if self.recorded_now():
            others = list(listed.callbacks)
            if self.recorded not in others:
                listed.callbacks = [self.recorded, *others]
            session._timer.attach(listed)
            recorder._gpus.start(recorder.adapter, recorder.settings.sample_hz)
        else:
            session._timer.detach()
            recorder.adapter._train.unwrap()
            recorder._gpus.stop()
            listed.callbacks = [one for one in listed.callbacks if one is not self.recorded]

    def on_train_begin(self, logs=None):
        frame: Any = sys._getframe(1)
        while frame is not None:  # the CallbackList that calls this hook
            owner = frame.f_locals.get("self")
            if isinstance(owner, keras.callbacks.CallbackList):
                self._listed = owner
                return
            frame = frame.f_back
        raise RuntimeError("no CallbackList was found")


def ratio(seconds: list[tuple[bool, float]]) -> dict[str, float]:
    """Median and quartiles of on / off of neighbouring blocks, and of the difference in µs."""
    pairs = [
        (a[1], b[1]) if a[0] else (b[1], a[1])
        for a, b in itertools.pairwise(seconds[1:])  # the first block warms up
        if a[0] != b[0]
    ]
    if not pairs:
        return {"pairs": 0}
    on, off = np.array(pairs).T
    low, middle, high = np.percentile(on / off, (25, 50, 75))
    return {
        "pairs": len(pairs),
        "ratio": round(float(middle), 4),
        "ratio_p25": round(float(low), 4),
        "ratio_p75": round(float(high), 4),
        "added_us": round(float(np.median(on - off)) * 1e6, 1),
        "step_ms": round(float(np.median(off)) * 1e3, 3),
    }
