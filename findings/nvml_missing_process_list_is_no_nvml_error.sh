#!/usr/bin/env bash
# nvidia-ml-py 13.615.71 over a library that lacks the newest functions, as that of a driver of 2021 does.
# Guess: each missing function raises NVMLError_FunctionNotFound. Seen: most do, but the three lists of processes raise
# NVMLLibraryMismatchError, which is no NVMLError: `except NVMLError` round a monitor's readings does not catch it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-ml-py==13.615.71
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import ctypes
import importlib.metadata
import pynvml
pynvml.nvmlLib = ctypes.CDLL(None)  # Python itself stands in for the driver's library: it has none of the functions
ASKED = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetUtilizationRates")
raised = {}
for name in ASKED:
    try:
        getattr(pynvml, name)(None)
    except Exception as error:
        raised[name] = type(error)
print(importlib.metadata.version("nvidia-ml-py"), {name: kind.__name__ for name, kind in raised.items()})
assert [issubclass(raised[name], pynvml.NVMLError) for name in ASKED] == [False, False, True]
PY
