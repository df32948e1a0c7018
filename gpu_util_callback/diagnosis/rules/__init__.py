"""The causes of a low utilization, one rule per file or folder.

A rule reads `evidence`, never files or frameworks; it states its thresholds and is silent, never
positive, if a source is missing. The user may set its thresholds.
"""

from collections.abc import Mapping

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
from gpu_util_callback.diagnosis.rules.slow_steps import SlowSteps
from gpu_util_callback.diagnosis.rules.small_batch import SmallBatch
from gpu_util_callback.diagnosis.rules.small_model import SmallModel
from gpu_util_callback.diagnosis.rules.stuck import Stuck
from gpu_util_callback.diagnosis.rules.sync_bound import SyncBound
from gpu_util_callback.diagnosis.rules.throttled import Throttled
from gpu_util_callback.diagnosis.rules.transfer_bound import TransferBound

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
    SlowSteps(),
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
