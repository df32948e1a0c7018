"""What recording costs on this machine, as text."""

from __future__ import annotations

from typing import Any

# What `costs_child` answers; each is there, or holds an "error", or was cut off.
PARTS = ("idle", "loaded", "1 Hz", "10 Hz", "50 Hz", "windows")


def whole(found: dict[str, Any]) -> bool:
    """Whether everything was measured."""
    return "error" not in found and all(name in found and "error" not in found[name] for name in PARTS)


def report(found: dict[str, Any]) -> str:
    """The figures as text, and which of them are missing."""
    lines = []
    if "device" in found:
        lines.append(found["device"]["name"])
    if "step_ms" in found:
        lines[-1] += f", a step takes {found['step_ms']:.1f} ms"
    idle, loaded = found.get("idle") or {}, found.get("loaded") or {}
    names = [name for name in {**idle, **loaded} if name != "error"]
    if names:
        lines.append(f"\n{'µs of each call':<44}{'idle p50':>11}{'p99':>11}{'loaded p50':>12}{'p99':>11}")
        for name in names:
            a, b = idle.get(name) or {}, loaded.get(name) or {}
            cells = [
                (part.get(key), width)
                for part, widths in ((a, (11, 11)), (b, (12, 11)))
                for key, width in zip(("p50_us", "p99_us"), widths, strict=True)
            ]
            lines.append(f"{name:<44}" + "".join(_cell(*cell) for cell in cells))
    lines.append("\nstep with recording / without, in alternating blocks of one fit")
    for name in ("1 Hz", "10 Hz", "50 Hz", "windows"):
        part = found.get(name)
        if part and "error" not in part and part.get("pairs"):
            lines.append(
                f"{name:<10}×{part['ratio']:.4f} [{part['ratio_p25']:.4f} … "
                f"{part['ratio_p75']:.4f}]  {part['added_us']:+.1f} µs a step of "
                f"{part['step_ms']:.2f} ms, {part['pairs']} pairs"
            )
        elif part:
            why = part.get("error") or part.get("absent") or "too few blocks"
            lines.append(f"{name:<10}{why}")
    lines += _windows(found.get("windows") or {})
    for name in PARTS:
        if name not in found:
            lines.append(f"{name}: not measured")
        elif name in ("idle", "loaded") and "error" in found[name]:
            lines.append(f"{name}: {found[name]['error']}")
    lines += [f"error: {found['error']}"] if "error" in found else []
    return "\n".join(lines)


def _cell(value: float | None, width: int) -> str:
    return f"{'-' if value is None else format(value, '.1f'):>{width}}"


def _windows(part: dict[str, Any]) -> list[str]:
    if not part.get("windows"):
        return []
    said = [
        f"\n{part['windows']} windows of {part['window_steps']} steps: "
        f"{part['added_ms_a_window']:+.1f} ms of training each, a file of {part['file_kb']} kB"
    ]
    for label, what in (
        ("start_ms", "start"),
        ("halt_ms", "stop (training thread)"),
        ("stop_ms", "stop (its own thread)"),
        ("read_ms", "read (its own process)"),
    ):
        one = part.get(label) or {}
        if one.get("count"):
            said.append(f"  {what:<24}{one['p50']:>8.1f} ms, the first {one['first']:.1f}, at most {one['max']:.1f}")
    gpm = part.get("gpm")
    if gpm is None:
        return [*said, "GPM: not measured beside windows"]
    for name in ("beside", "inside", "behind"):
        one = gpm[name]
        said.append(
            f"  GPM {name + ' windows':<20}SM active {one['sm_active_pct']} %, "
            f"{one['samples']} samples, {one['absent']} of them absent"
        )
    said.append(f"  GPM samples are {gpm['usual_gap_ms']} ms apart, at most {gpm['longest_gap_ms']} ms")
    return said
