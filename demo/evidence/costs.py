"""What recording costs on this machine: runs the measuring process and prints its figures."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from evidence import table
from evidence.scenarios import named

__all__ = ["measure", "report"]


def measure(args: argparse.Namespace, environment: Callable) -> int:
    """Measure, print, write `costs-<backend>.json`; returns an exit code."""
    from gpu_evidence import run_child

    folder = args.out / args.backend / "costs"
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "backend": args.backend, "stand_in": args.stand_in, "seconds": args.seconds,
        "log_dir": str(folder / time.strftime("%Y%m%d-%H%M%S")),
        "answer": str(folder / "answer.json"),
    }  # fmt: skip
    (folder / "answer.json").unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    found = run_child(
        "costs_child.py", folder / "job.json", folder / "answer.json",
        environment(named("healthy"), args), 60 * args.minutes,
    )  # fmt: skip
    late = "error" in found and (folder / "answer.json").exists()
    if late:  # the deadline came: what was measured until then stands
        found = {**json.loads((folder / "answer.json").read_text()), **found}
    kept = {"version": 1, "backend": args.backend, "stand_in": args.stand_in,
            "date": time.strftime("%Y-%m-%d"), **found}  # fmt: skip
    (args.out / f"costs-{args.backend}.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(report(found))
    if args.stand_in:
        print(table.STAND_IN)
    parts = [value for value in found.values() if isinstance(value, dict)]
    return 1 if "error" in found or any("error" in part for part in parts) else 0


def report(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = []
    if "device" in found:
        lines.append(f"{found['device']['name']}, a step takes {found['step_ms']:.1f} ms")
    idle, loaded = found.get("idle") or {}, found.get("loaded") or {}
    names = [name for name in idle if name != "error"]
    if names:
        lines.append(
            f"\n{'µs of each call':<44}{'idle p50':>9}{'p99':>9}{'loaded p50':>12}{'p99':>9}"
        )
        for name in names:
            a, b = idle[name], loaded.get(name) or {}
            shown = [part.get(key, float("nan")) for part in (a, b) for key in ("p50_us", "p99_us")]
            lines.append(f"{name:<44}" + "".join(f"{value:>11.1f}" for value in shown))
    lines.append("\nstep with recording / without, in alternating blocks of one fit")
    for name in ("1 Hz", "10 Hz", "50 Hz", "windows"):
        part = found.get(name)
        if part and part.get("pairs"):
            lines.append(
                f"{name:<10}×{part['ratio']:.4f} [{part['ratio_p25']:.4f} … "
                f"{part['ratio_p75']:.4f}]  {part['added_us']:+.1f} µs a step of "
                f"{part['step_ms']:.2f} ms, {part['pairs']} pairs"
            )
        elif part:
            why = part.get("error") or part.get("absent") or "too few blocks"
            lines.append(f"{name:<10}{why}")
    lines += _windows(found.get("windows") or {})
    lines += [f"error: {found['error']}"] if "error" in found else []
    return "\n".join(lines)


def _windows(part: dict[str, Any]) -> list[str]:
    if "windows" not in part:
        return []
    said = [
        f"\n{part['windows']} windows of {part['window_steps']} steps: "
        f"{part['added_ms_a_window']:+.1f} ms of training each, a file of {part['file_kb']} kB"
    ]
    for label, what in (("start_ms", "start"), ("stop_ms", "stop (its own thread)"),
                        ("read_ms", "read (its own process)")):  # fmt: skip
        one = part[label]
        if one["count"]:
            said.append(f"  {what:<24}{one['p50']:>8.1f} ms, the first {one['first']:.1f}, "
                        f"at most {one['max']:.1f}")  # fmt: skip
    gpm = part.get("gpm")
    if gpm is None:
        return [*said, "GPM: not measured beside windows"]
    for name in ("beside", "inside", "behind"):
        one = gpm[name]
        said.append(
            f"  GPM {name + ' windows':<20}SM active {one['sm_active_pct']} %, "
            f"{one['samples']} samples, {one['absent']} of them absent"
        )
    said.append(
        f"  GPM samples are {gpm['usual_gap_ms']} ms apart, at most {gpm['longest_gap_ms']} ms"
    )
    return said
