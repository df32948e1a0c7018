"""Messages during training about causes that are established: after ten hours is too late."""

from collections.abc import Mapping

from gpu_util_callback.diagnosis.verdict import BLOCKING
from gpu_util_callback.words import duration, percent, what_to_do

__all__ = ["Announcer"]


class Announcer:
    """Decides which causes are established, and reports each once.

    A cause is established when it was present in `IN_A_ROW` consecutive results and has lost at
    least `LEAST_S` seconds and a tenth of the time it spans: symptoms of a run's first seconds
    (compilation, first fills) must not be reported. A cause of unknown cost (a GPU without work, a
    full memory) must persist for about as long: for `UNKNOWN_IN_A_ROW` results, 2 s apart or more.
    """

    IN_A_ROW = 3
    UNKNOWN_IN_A_ROW = 6
    LEAST_S = 10.0
    LEAST_SEVERITY = 0.1

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self._said: set[str] = set()

    def lines(self, result: Mapping) -> list[str]:
        """Return the lines to print after one `Diagnosis.result`; usually none."""
        costly: dict[str, Mapping] = {}
        for finding in [*result["spans"], *result["findings"]]:
            enough = (finding["lost_s"] or 0) >= self.LEAST_S
            if finding["lost_s"] is None or (enough and finding["severity"] >= self.LEAST_SEVERITY):
                costly.setdefault(finding["cause"], finding)
        self._streaks = {cause: self._streaks.get(cause, 0) + 1 for cause in costly}
        new = [cause for cause, streak in self._streaks.items()
               if streak >= self._needed(costly[cause]) and cause not in self._said]  # fmt: skip
        self._said.update(new)
        return [_line(costly[cause]) for cause in new]

    def _needed(self, finding: Mapping) -> int:
        blocking = finding["cause"] in BLOCKING
        unknown = finding["lost_s"] is None and not blocking
        return self.UNKNOWN_IN_A_ROW if unknown else self.IN_A_ROW


def _line(finding: Mapping) -> str:
    said = str(finding["title"])
    if finding["lost_s"]:
        said += f": {duration(finding['lost_s'])} lost so far"
        if "start_step" in finding:
            said += f", {percent(100 * finding['severity'])} of the time since step"
            said += f" {finding['start_step']:,}"
    return f"{said}. {what_to_do(finding['advice'])}"
