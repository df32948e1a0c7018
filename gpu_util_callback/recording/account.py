"""The host account: the training thread's time by category, disjoint and exact."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_util_callback.recording import facts
from gpu_util_callback.recording.schema import ACCOUNTS

__all__ = ["Account", "account"]

# Column of `steps` -> the category its time belongs to.
_STEP_PARTS = {
    "input_wait_ns": "input_wait",
    "compile_ns": "compile",
    "body_ns": "step",
    "gpu_wait_ns": "step",
    "callbacks_ns": "callbacks",
}


class Account:
    """Sums rows up as they come; `result` may be called at any time."""

    def __init__(self) -> None:
        self._ns = dict.fromkeys(ACCOUNTS, 0)
        self._between_ns = 0  # between the fits of a series: not part of the training

    def add_steps(self, steps: Mapping[str, np.ndarray]) -> None:
        """Add rows of the `steps` table; absent parts count nothing."""
        for column, category in _STEP_PARTS.items():
            values = steps.get(column)
            if values is not None:
                values = np.asarray(values)
                self._ns[category] += int(values[values > 0].sum())

    def add_phases(self, phases: Mapping[str, Any]) -> None:
        """Add rows of the `phases` table; containers (account "") count nothing."""
        accounts = np.asarray(phases.get("account", ()), object)
        if not len(accounts):
            return
        spent = np.asarray(phases["self_ns"])
        between = np.asarray(phases.get("kind", ()), object) == "between_fits"
        if between.any():
            self._between_ns += int(spent[between].sum())
        for category in ACCOUNTS:
            of_category = spent[accounts == category]
            self._ns[category] += int(of_category[of_category > 0].sum())

    def result(self, start_ns: int, end_ns: int) -> facts.Account:
        """Return seconds by category, and the wall time, to which the categories sum.

        The wall time is that of the training: of all fits of a series together. The time
        between them is "between_fits_s", outside all categories.

        `other` is the remainder. Rows that overlap by mistake could make it negative; it is then
        not hidden, so that checks see it.
        """
        wall = max(0, end_ns - start_ns - self._between_ns)
        named = {name: self._ns[name] for name in ACCOUNTS if name != "other"}
        other = wall - sum(named.values())
        times = {name: value / 1e9 for name, value in named.items()}
        result: facts.Account = {"wall_s": wall / 1e9, "time_s": {**times, "other": other / 1e9}}
        if self._between_ns:
            result["between_fits_s"] = self._between_ns / 1e9
        return result


def account(
    steps: Mapping[str, np.ndarray], phases: Mapping[str, Any], start_ns: int, end_ns: int
) -> facts.Account:
    """Return the account of whole tables; see `Account.result`."""
    total = Account()
    total.add_steps(steps)
    total.add_phases(phases)
    return total.result(start_ns, end_ns)
