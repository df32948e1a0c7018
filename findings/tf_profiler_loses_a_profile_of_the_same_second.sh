#!/usr/bin/env bash
# tensorflow 2.21.0: two profiles taken one after the other into one log directory.
# Guess: two folders. Seen: a folder is named by the second, so two profiles of one second share it, and the
# file of the later one replaces the earlier without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorflow==2.21.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import os, pathlib, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
tf.profiler.experimental.start("warm")
tf.profiler.experimental.stop()
time.sleep(1 - time.time() % 1)
stamps = []
for number in range(2):
    tf.profiler.experimental.start("logs")
    tf.ones(10) + number
    tf.profiler.experimental.stop()
    stamps.append(int(time.time()))
files = list(pathlib.Path("logs/plugins/profile").rglob("*.xplane.pb"))
print(tf.__version__, "seconds", stamps, "files", len(files))
if stamps[0] != stamps[1]:
    raise SystemExit("the machine was too slow for two profiles in a second: run it again")
assert len(files) == 1
PY
