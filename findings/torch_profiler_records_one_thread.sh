#!/usr/bin/env bash
# torch 2.13.0: a thread of the program (one that makes batches, say) computes while the main thread profiles.
# Guess: the operations of all threads of the process are in the profile. Seen: those of the thread that started it alone,
# wherever the other was started; with `profile_all_threads=True`, an experimental option, both are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import threading
import torch
from torch._C._profiler import _ExperimentalConfig

def recorded(**options):
    stop, begun = threading.Event(), threading.Event()
    def before():
        while not stop.is_set():
            torch.ones(50).cumsum(0)
            begun.set()
    thread = threading.Thread(target=before)
    thread.start()
    begun.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profile:
        within = threading.Thread(target=lambda: torch.ones(50).cumprod(0))
        within.start()
        within.join()
        begun.clear()
        begun.wait()
        torch.ones(50).exp()
    stop.set()
    thread.join()
    names = {event.key for event in profile.key_averages()}
    return [name in names for name in ("aten::exp", "aten::cumsum", "aten::cumprod")]

seen = recorded(), recorded(experimental_config=_ExperimentalConfig(profile_all_threads=True))
print(torch.__version__, "own thread, one from before, one from within:", seen[0], "with profile_all_threads:", seen[1])
assert seen == ([True, False, False], [True, True, True])
PY
