#!/usr/bin/env bash
# accelerate 1.15.0: the loader that `Accelerator.prepare` returns.
# Guess: an object of a subclass of DataLoader, with its arguments. Seen: `isinstance` says so, but it only claims that class:
# `type(loader)` does not descend from it, and what looks there takes it for another kind of iterable.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check accelerate==1.15.0 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import accelerate, torch
data = torch.utils.data.TensorDataset(torch.ones(12, 2))
loader = accelerate.Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(data, batch_size=4))
claims = isinstance(loader, torch.utils.data.DataLoader)
descends = issubclass(type(loader), torch.utils.data.DataLoader)
print(accelerate.__version__, type(loader).__name__, "claims", claims, "descends", descends, "batch size", loader.batch_size)
assert claims and not descends and "base_dataloader" in vars(loader)
PY
