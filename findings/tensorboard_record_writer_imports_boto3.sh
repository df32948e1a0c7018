#!/usr/bin/env bash
# tensorboard 2.21.0 beside boto3: `from tensorboard.summary.writer.record_writer import RecordWriter`.
# Guess: the record format, a few kB of code. Seen: every summary plugin is imported, and boto3 and botocore where they
# are installed, although nothing is written to S3: 200 modules and more.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorboard==2.21.0 boto3==1.43.117
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import sys
import tensorboard
before = set(sys.modules)
from tensorboard.summary.writer.record_writer import RecordWriter
new = set(sys.modules) - before
print(tensorboard.__version__, len(new), "modules,", "boto3" in new, "tensorboard.plugins.pr_curve.summary" in new)
assert "boto3" in new and "tensorboard.plugins.pr_curve.summary" in new and len(new) > 200
PY
