#!/usr/bin/env bash
# nvidia-dali-cuda120 2.4.0 without a GPU: a pipeline with a Python source and `prefetch_queue_depth=2`, one batch taken.
# Guess: it does not import without a driver; a thread of its own reads batches ahead. Seen: it runs; the source is called by
# the thread that asks for the batch, twice for the first one, and by nobody in between: the queue hides no Python.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-dali-cuda120==2.4.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import threading, time
import numpy as np
import nvidia.dali
from nvidia.dali import fn, pipeline_def, types

threads = []

def source(sample):
    threads.append(threading.get_ident())
    return np.ones(4, np.float32)

@pipeline_def(batch_size=4, num_threads=1, device_id=None, prefetch_queue_depth=2)
def pipeline():
    return fn.external_source(source, batch=False, dtype=types.FLOAT)

running = pipeline()
running.build()
running.run()
first = len(threads)
time.sleep(1)
later = len(threads)
running.run()
print(nvidia.dali.__version__, "samples read for the first batch", first, "a second later", later, "for two", len(threads))
assert (first, later, len(threads)) == (8, 8, 12) and set(threads) == {threading.get_ident()}
PY
