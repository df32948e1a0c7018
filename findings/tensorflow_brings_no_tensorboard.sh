#!/usr/bin/env bash
# tensorflow 2.21.0: what `pip install tensorflow` installs.
# Guess: TensorBoard, too, as it always did. Seen: none of the packages is TensorBoard; `keras.callbacks.TensorBoard` works
# without, and there is nothing to look at its files with. (`pip` resolves and installs nothing.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
cd "$folder"
env/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --report report.json tensorflow==2.21.0
env/bin/python - <<'PY'
import json
packages = {entry["metadata"]["name"].lower(): entry["metadata"]["version"] for entry in json.load(open("report.json"))["install"]}
print(packages["tensorflow"], len(packages), "packages", sorted(packages))
assert "keras" in packages and not any("tensorboard" in name for name in packages)
PY
