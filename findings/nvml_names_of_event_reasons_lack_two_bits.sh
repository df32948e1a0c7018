#!/usr/bin/env bash
# nvidia-ml-py 13.615.71: the bits of why a GPU's clock is low, by their newer and their older names.
# Guess: `nvmlClocksEventReason…` renames `nvmlClocksThrottleReason…`, bit by bit. Seen: board limit (0x200) and reliability
# (0x400) have the older name alone, and `nvmlClocksEventReasonAll` is 0x1ff: who masks with it never sees a board limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-ml-py==13.615.71
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import importlib.metadata
import pynvml

def bits(prefix):
    names = [name for name in vars(pynvml) if name.startswith(prefix) and not name.endswith(("All", "None"))]
    return {getattr(pynvml, name) for name in names}

missing = bits("nvmlClocksThrottleReason") - bits("nvmlClocksEventReason")
masks = pynvml.nvmlClocksEventReasonAll, pynvml.nvmlClocksThrottleReasonAll
print(importlib.metadata.version("nvidia-ml-py"), "without a newer name", *map(hex, sorted(missing)), "masks", *map(hex, masks))
assert missing == {0x200, 0x400} and masks == (0x1FF, 0x7FF)
PY
