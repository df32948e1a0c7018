#!/usr/bin/env bash
# grain 0.2.18 beside jax 0.10.2: `worker_count=1` (and `mp_prefetch`) in a script that Python runs.
# Guess: a worker process makes the elements. Seen: the first one raises UnparsedFlagAccessError, unless `absl.app.run`
# started the program or its flags were marked as parsed. Where JAX is not installed, nothing is raised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check grain==0.2.18 jax==0.10.2
cd "$folder"
cat > program.py <<'PY'
import importlib.metadata
import absl.flags
import grain

def elements():
    sampler = grain.samplers.IndexSampler(40, shuffle=False, num_epochs=1, seed=0)
    loader = grain.DataLoader(data_source=range(40), sampler=sampler, worker_count=1)
    lazy = grain.MapDataset.source(range(40)).to_iter_dataset()
    ahead = lazy.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=1))
    seen = []
    for data in (loader, ahead):
        try:
            seen.append(sum(1 for _ in data))
        except absl.flags.UnparsedFlagAccessError as error:
            seen.append(type(error).__name__)
    return seen

if __name__ == "__main__":
    before = elements()
    absl.flags.FLAGS.mark_as_parsed()
    after = elements()
    print(importlib.metadata.version("grain"), "elements of 40: by itself", before, "with parsed flags", after)
    assert before == ["UnparsedFlagAccessError"] * 2 and after == [40, 40]
PY
"$folder/env/bin/python" -W ignore program.py
