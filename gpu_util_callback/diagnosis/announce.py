"""One line while training goes on, when a cause is established: after ten hours is late."""

from collections.abc import Mapping

from gpu_util_callback.words import duration, percent, what_to_do

__all__ = ["Announcer"]


class Announcer:
    """Decides which causes are established, and says each once.

    A cause is established when it was there in `IN_A_ROW` results running, has lost at least
    `LEAST_S` seconds, and a tenth of the time it spans: what is seen in the first seconds of a run
    (compilation, first fills) must not be said. One whose cost nobody knows (a GPU without work, a
    full memory) must be there for about as long: in `UNKNOWN_IN_A_ROW` results, 2 s apart or more.
    """

    IN_A_ROW = 3
    UNKNOWN_IN_A_ROW = 6
    LEAST_S = 10.0
    LEAST_SEVERITY = 0.1

    def __init__(self) -> None:
        self._streaks: dict[str, int] = {}
        self._said: set[str] = set()

    def lines(self, result: Mapping) -> list[str]:
        """The lines to print now, after one `Diagnosis.result`; usually none."""
        costly: dict[str, Mapping] = {}
        for claim in [*result["spans"], *result["findings"]]:
            enough = (claim["lost_s"] or 0) >= self.LEAST_S
            if claim["lost_s"] is None or (enough and claim["severity"] >= self.LEAST_SEVERITY):
                costly.setdefault(claim["cause"], claim)
        self._streaks = {cause: self._streaks.get(cause, 0) + 1 for cause in costly}
        new = [cause for cause, streak in self._streaks.items()
               if streak >= self._needed(costly[cause]) and cause not in self._said]  # fmt: skip
        self._said.update(new)
        return [_line(costly[cause]) for cause in new]

    def _needed(self, claim: Mapping) -> int:
        blocking = claim["cause"] == "cpu_fallback"
        unknown = claim["lost_s"] is None and not blocking
        return self.UNKNOWN_IN_A_ROW if unknown else self.IN_A_ROW


def _line(claim: Mapping) -> str:
    said = str(claim["title"])
    if claim["lost_s"]:
        said += f": {duration(claim['lost_s'])} lost so far"
        if "start_step" in claim:
            said += f", {percent(100 * claim['severity'])} of the time since step"
            said += f" {claim['start_step']:,}"
    return f"{said}. {what_to_do(claim['advice'])}"
