#!/usr/bin/env bash
# tensorboard 2.21.0: a run of two event files, steps 0 to 9 in the first, 0 to 3 in the second, as a training started again
# into its directory writes them.
# Guess: both of TensorBoard's readers show the same. Seen: `--load_fast=false` shows 14 points, `--load_fast=true`, the data
# server, 4: all that came before a step that goes back is hidden.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorboard==2.21.0 "setuptools<82"
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import json, re, subprocess, sys, time, urllib.request
import tensorboard
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
for suffix, steps in ((".first", 10), (".second", 4)):
    writer = EventFileWriter("logs/run", filename_suffix=suffix)
    for step in range(steps):
        value = Summary.Value(tag="loss", simple_value=step)
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.close()
    time.sleep(1.1)  # files are read in the order of their names, which have the second

def points(load_fast):
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--port", "0", "--load_fast", load_fast],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )
    try:
        address = next(found for line in server.stderr if (found := re.search(r"http://\S+:\d+/", line))).group()
        for _ in range(60):
            try:
                return len(json.load(urllib.request.urlopen(f"{address}data/plugin/scalars/scalars?tag=loss&run=run")))
            except OSError:
                time.sleep(1)
    finally:
        server.terminate()

seen = points("false"), points("true")
print(tensorboard.__version__, "points with --load_fast=false and true:", *seen)
assert seen == (14, 4)
PY
