"""ECC errors: the GPU's memory returned data that it could not correct."""

import numpy as np

from gpu_util_callback.diagnosis.evidence.run_evidence import Run
from gpu_util_callback.diagnosis.rule import Advice, Findings, Rule
from gpu_util_callback.diagnosis.thresholds import Limits, Threshold

COLUMN = "ecc_uncorrected"


class GpuEccErrors(Rule):
    """Uncorrected memory errors came up during the run; errors from before it do not count."""

    cause = "gpu_ecc_errors"
    title = "Uncorrected GPU memory errors"
    look = "⚠", "red"
    sources = ("ECC counters",)
    thresholds = {"uncorrected_errors": Threshold(1, "one is enough: data was lost, or the process ended")}
    unknown = "the GPU has no ECC counters, or they were not sampled"

    def missing(self, run: Run) -> bool:
        return not any(run.column(gpu, COLUMN) for gpu in run.used_gpus)

    def find(self, run: Run, limits: Limits) -> Findings:
        for gpu in run.used_gpus:
            bins = run.column(gpu, COLUMN)
            if bins is None:
                continue
            at, counted = bins.means(COLUMN)
            grew = np.flatnonzero(np.diff(counted) > 0)
            # The driver counts since the last reboot; a bin's mean may lie between two counts.
            errors = int(np.ceil((bins.maximum(COLUMN) or 0) - counted[0]))
            if not len(grew) or errors < limits["uncorrected_errors"]:
                continue
            start, end = bins.starts(at[[grew[0], grew[-1] + 1]]).tolist()
            yield self.finding(
                title=f"gpu{gpu} had uncorrected memory errors",
                where=run.range_of(start, max(end, start + 1)),
                evidence={"gpu": gpu, "uncorrected_errors": errors},
                advice=Advice(
                    f"The memory of gpu{gpu} returned data that it could not correct: results from "
                    "then on may be wrong. Go back to a checkpoint from before, reset the GPU so "
                    "that it remaps the bad rows, and replace it if errors come back.",
                    "nvidia-smi -q -d ECC,ROW_REMAPPER",
                ),
                gpus=[gpu],
                detail=f"gpu{gpu}",
            )
