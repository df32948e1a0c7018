#!/usr/bin/env bash
# tensorboard 2.21.0: two writers at work in one folder (a training's scalars and a monitor's), three more points from each.
# Guess: TensorBoard shows what both go on to write. Seen: with `--load_fast=true` it does; with `--load_fast=false` the older file
# is read no more once there is a newer one, unless `--reload_multifile=true`: its curves stop, until TensorBoard is started again.
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

def write(steps):
    for step in steps:
        for tag, writer in writers.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=1.0)])
            writer.add_event(Event(wall_time=1e9 + step, step=step, summary=summary))
            writer.flush()

def points(tag, least):
    for _ in range(60):
        try:
            read = json.load(urllib.request.urlopen(f"{address}data/plugin/scalars/scalars?tag={tag}&run={run}"))
            if len(read) >= least:
                break
        except OSError:
            pass
        time.sleep(1)
    return len(read)

for options in (["--load_fast=true"], ["--load_fast=false"], ["--load_fast=false", "--reload_multifile=true"]):
    run = re.sub("[^a-z]", "", "".join(options))
    writers = {"older": EventFileWriter(f"logs/{run}")}
    time.sleep(1.1)  # names of the files begin with the second
    writers["newer"] = EventFileWriter(f"logs/{run}")
    write(range(5))
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", "logs", "--port", "0", "--reload_interval", "1", *options],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )
    try:
        address = next(found for line in server.stderr if (found := re.search(r"http://\S+:\d+/", line))).group()
        assert (points("older", 5), points("newer", 5)) == (5, 5)
        write(range(5, 8))
        newer = points("newer", 8)
        time.sleep(3)
        older = points("older", 0)
    finally:
        server.terminate()
    print(tensorboard.__version__, *options, "points of the newer file", newer, "of the older", older)
    assert newer == 8 and older == (5 if options == ["--load_fast=false"] else 8)
PY
