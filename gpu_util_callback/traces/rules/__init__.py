"""Rules over traces: one cause per file, as for recordings.

Conditions that a trace shares with a recording have the same name, limit and advice, and are taken
from `diagnosis`; a trace times every gap exactly, so some of its limits are lower.
"""

from gpu_util_callback.traces.rules._rule import Finding, Scene, TraceRule
from gpu_util_callback.traces.rules.communication_bound import CommunicationBound
from gpu_util_callback.traces.rules.host_stall import HostStall
from gpu_util_callback.traces.rules.imbalance import Imbalance
from gpu_util_callback.traces.rules.input_bound import InputBound
from gpu_util_callback.traces.rules.launch_bound import LaunchBound
from gpu_util_callback.traces.rules.no_tensor_cores import NoTensorCores
from gpu_util_callback.traces.rules.sync_bound import SyncBound
from gpu_util_callback.traces.rules.transfer_bound import TransferBound

__all__ = ["RULES", "Finding", "Scene", "TraceRule"]

RULES: tuple[TraceRule, ...] = (
    InputBound(), TransferBound(), LaunchBound(), SyncBound(), HostStall(), CommunicationBound(),
    NoTensorCores(), Imbalance(),
)  # fmt: skip
