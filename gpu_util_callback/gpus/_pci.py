"""Whether this machine has an NVIDIA GPU at all, asked of the system instead of the driver."""

from pathlib import Path

__all__ = ["nvidia_gpus"]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: VGA and 3D controllers


def nvidia_gpus(root: str = "/") -> int | None:
    """How many NVIDIA GPUs are on the PCI bus; None where the system does not tell.

    Sandboxes show an empty bus, WSL has its GPUs elsewhere, Jetsons have theirs on no bus.
    """
    base = Path(root)
    try:
        if (base / "dev/dxg").exists() or list((base / "dev").glob("nvidia*")):
            return None
        devices = list((base / "sys/bus/pci/devices").iterdir())
        texts = [
            ((device / "vendor").read_text().strip(), (device / "class").read_text().strip())
            for device in devices
        ]
    except OSError:
        return None
    if not texts:
        return None
    return sum(vendor == _NVIDIA and kind.startswith(_DISPLAY) for vendor, kind in texts)
