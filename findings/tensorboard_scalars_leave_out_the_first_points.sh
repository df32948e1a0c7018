#!/usr/bin/env bash
# tensorboard 2.21.0: a scalar of 5,000 steps with one peak, in both of TensorBoard's readers.
# Guess: the first, the last and the peak are among what is shown. Seen: 1,000 points drawn by lot, the last one always, the first
# not; the peak only if it is drawn, which differs between `--load_fast=false` and `true`. A slow step seldom shows.
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
writer = EventFileWriter("logs/run")
for step in range(5000):
    value = Summary.Value(tag="step time", simple_value=1000.0 if step == 2500 else 1.0)
    writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
writer.close()

def points(load_fast):
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--port", "0", "--load_fast", load_fast],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )
    try:
        address = next(found for line in server.stderr if (found := re.search(r"http://\S+:\d+/", line))).group()
        url = f"{address}data/plugin/scalars/scalars?tag=step%20time&run=run"
        for _ in range(60):
            try:
                found = json.load(urllib.request.urlopen(url))
                if found[-1][1] == 4999:
                    return found
            except OSError:
                pass
            time.sleep(1)
    finally:
        server.terminate()

for load_fast in ("false", "true"):
    found = points(load_fast)
    peak = max(value for *_, value in found)
    print(tensorboard.__version__, "load_fast", load_fast, len(found), "points from step", found[0][1], "peak", peak)
    assert len(found) == 1000 and found[0][1] > 0
PY
