"""Fill level of the framework's own allocator: the only memory that shows whether VRAM is short."""

from dataclasses import dataclass

from gpu_util_callback.diagnosis.evidence.run import Run

__all__ = ["Allocator", "allocator"]


@dataclass(frozen=True, slots=True)
class Allocator:
    """Bytes of one GPU's allocator.

    Attributes:
        peak: the most in use at a time.
        limit: its upper bound (the device's memory if no limit is known).
        total: the device's memory, None = not known.
        retries, out_of_memory: how often it had to free its cache, and failed; None = not known.
    """

    peak: float
    limit: float
    total: float | None
    retries: int | None
    out_of_memory: int | None

    @property
    def used_pct(self) -> float:
        return 100 * self.peak / self.limit


def allocator(run: Run, gpu: int) -> Allocator | None:
    """Return None if the framework reported none; the device's own "used" is no substitute."""
    return run.once(("allocator", gpu), lambda: _allocator(run, gpu))


def _allocator(run: Run, gpu: int) -> Allocator | None:
    def highest(name: str) -> float | None:
        return run.highest(gpu, name)

    peaks = [highest(name) for name in ("allocator_peak_bytes", "allocator_used_bytes")]
    known = [peak for peak in peaks if peak is not None]
    total = run.gpu(gpu).get("memory_total_bytes")
    limit = highest("allocator_limit_bytes") or total
    if not known or not limit:
        return None
    retries, ooms = highest("allocator_retries"), highest("allocator_ooms")
    return Allocator(
        max(known), float(limit), float(total) if total else None,
        None if retries is None else int(retries), None if ooms is None else int(ooms),
    )  # fmt: skip
