"""The causes of a low utilization, one rule per file or folder.

A rule reads `evidence`, never files or frameworks; it states its thresholds and is silent, never
positive, if a source is missing. The user may set its thresholds.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import chain

from gpu_util_callback.diagnosis.rule import Rule
from gpu_util_callback.diagnosis.rules.between_fits import BetweenFits
from gpu_util_callback.diagnosis.rules.communication_bound import CommunicationBound
from gpu_util_callback.diagnosis.rules.contention import Contention
from gpu_util_callback.diagnosis.rules.cpu_fallback import CpuFallback
from gpu_util_callback.diagnosis.rules.data_ended import DataEnded
from gpu_util_callback.diagnosis.rules.data_waste import DataWaste
from gpu_util_callback.diagnosis.rules.gpu_ecc_errors import GpuEccErrors
from gpu_util_callback.diagnosis.rules.gpu_lost import GpuLost
from gpu_util_callback.diagnosis.rules.gpus_unused import GpusUnused
from gpu_util_callback.diagnosis.rules.half_precision_cpu import HalfPrecisionCpu
from gpu_util_callback.diagnosis.rules.host_callback import HostCallback
from gpu_util_callback.diagnosis.rules.host_stall import HostStall
from gpu_util_callback.diagnosis.rules.imbalance import Imbalance
from gpu_util_callback.diagnosis.rules.input_bound import InputBound
from gpu_util_callback.diagnosis.rules.launch_bound import LaunchBound
from gpu_util_callback.diagnosis.rules.memory_growth import MemoryGrowth
from gpu_util_callback.diagnosis.rules.memory_limit import MemoryLimit
from gpu_util_callback.diagnosis.rules.memory_pressure import MemoryPressure
from gpu_util_callback.diagnosis.rules.memory_spill import MemorySpill
from gpu_util_callback.diagnosis.rules.no_tensor_cores import NoTensorCores
from gpu_util_callback.diagnosis.rules.out_of_memory import OutOfMemory
from gpu_util_callback.diagnosis.rules.recompilation import Recompilation
from gpu_util_callback.diagnosis.rules.small_batch import SmallBatch
from gpu_util_callback.diagnosis.rules.small_model import SmallModel
from gpu_util_callback.diagnosis.rules.stuck import Stuck
from gpu_util_callback.diagnosis.rules.sync_bound import SyncBound
from gpu_util_callback.diagnosis.rules.throttled import Throttled
from gpu_util_callback.diagnosis.rules.transfer_bound import TransferBound
from gpu_util_callback.diagnosis.thresholds import Limits, meant
from gpu_util_callback.errors import UnusableInput

RULES: tuple[Rule, ...] = (
    DataEnded(),
    DataWaste(),
    Stuck(),
    InputBound(),
    HostStall(),
    HostCallback(),
    Recompilation(),
    TransferBound(),
    LaunchBound(),
    SyncBound(),
    CommunicationBound(),
    SmallBatch(),
    SmallModel(),
    NoTensorCores(),
    MemoryPressure(),
    MemoryLimit(),
    MemoryGrowth(),
    MemorySpill(),
    OutOfMemory(),
    CpuFallback(),
    HalfPrecisionCpu(),
    GpusUnused(),
    Throttled(),
    Contention(),
    Imbalance(),
    GpuLost(),
    GpuEccErrors(),
    BetweenFits(),
)

RULE_OF: dict[str, Rule] = {rule.cause: rule for rule in RULES}


def title_of(cause: str) -> str:
    """Return what people call a cause; one that this version does not know by its id."""
    return RULE_OF[cause].title if cause in RULE_OF else cause


def cause_beside(finding: Mapping) -> str:
    """Return the title of a finding's cause; "" where the finding's own title says it."""
    title = title_of(finding["cause"])
    return "" if title.casefold() in finding["title"].casefold() else title


def part_of(finding: Mapping) -> str:
    """Return the part of the host account in which a finding is counted; "" if it is in none."""
    rule = RULE_OF.get(finding["cause"])
    detail = finding.get("id", "").partition("@")[0].partition(":")[2]
    return rule.part_of(detail) if rule is not None else ""


DECLARED = {rule.cause: rule.thresholds for rule in RULES}


def thresholds_in_force(given: Mapping | None, before: Mapping | None = None) -> dict[str, dict[str, float]]:
    """Return the thresholds in force: the defaults, overridden by the user's.

    Args:
        given: `{"input_bound": {"wait_pct": 10}}` or `{"input_bound.wait_pct": 10}`.
        before: thresholds that `given` overrides, in the same form.

    Raises:
        UnusableInput: an unknown cause or name (the nearest one is named), or not a number ≥ 0.
    """
    limits = {
        cause: {name: float(threshold.default) for name, threshold in names.items()}
        for cause, names in DECLARED.items()
    }
    for cause, key, value in chain(_flatten(before or {}), _flatten(given or {})):
        if cause not in limits:
            raise UnusableInput(f"no cause {cause!r} to set{meant(cause, limits)}")
        if key not in limits[cause]:
            raise UnusableInput(f"{cause} has no threshold {key!r}{meant(key, limits[cause])}")
        limits[cause][key] = _number(f"{cause}.{key}", value)
    return limits


def thresholds_set(limits: Mapping[str, Limits]) -> dict[str, float]:
    """Return the thresholds that are not the default: `{"input_bound.wait_pct": 10}`."""
    return {
        f"{cause}.{name}": value
        for cause, names in limits.items()
        for name, value in names.items()
        if value != DECLARED[cause][name].default
    }


def still_known(given: object) -> dict[str, float]:
    """Return the thresholds of a recording that still exist, in the form of `thresholds_set`."""
    existing: dict[str, float] = {}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        try:
            thresholds_in_force({name: value})
        except UnusableInput:
            continue  # of other rules, or damaged
        existing[str(name)] = float(value)
    return existing


def _flatten(given: Mapping) -> Iterable[tuple[str, str, object]]:
    """Yield (cause, name, value) of {cause: {name: value}} and {"cause.name": value}. Raises: UnusableInput."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from ((str(name), str(key), inner) for key, inner in value.items())
        else:
            cause, dot, key = str(name).partition(".")
            if not dot:
                raise UnusableInput(f"threshold {name!r}: name it CAUSE.NAME")
            yield cause, key, value


def _number(name: str, value: object) -> float:
    """Return a threshold as a number from 0 on. Raises: UnusableInput."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise UnusableInput(f"threshold {name} must be a non-negative number, got {value!r}")
    return number
