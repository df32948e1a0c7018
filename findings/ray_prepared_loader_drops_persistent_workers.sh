#!/usr/bin/env bash
# ray 2.60.0 with torch 2.13.0: `ray.train.torch.prepare_data_loader` in a job of two workers (CPU).
# Guess: the same DataLoader with a sampler for its part. Seen: `persistent_workers`, `prefetch_factor`, `in_order` and the way to
# start workers are those of a new one: its workers start in every epoch. With a DistributedSampler of one's own it is left alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check 'ray[train]==2.60.0' torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import json, os
import ray
import ray.train.torch
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
NAMES = ("num_workers", "persistent_workers", "prefetch_factor", "in_order")

def train(config):
    from torch.utils.data import DataLoader, DistributedSampler
    data = list(range(8))
    given = {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 8, "in_order": False}
    plain = ray.train.torch.prepare_data_loader(DataLoader(data, **given))
    sampled = ray.train.torch.prepare_data_loader(DataLoader(data, sampler=DistributedSampler(data), **given))
    if ray.train.get_context().get_world_rank() == 0:
        with open(config["file"], "w") as file:
            json.dump([[getattr(loader, name) for name in NAMES] for loader in (plain, sampled)], file)

file = os.path.abspath("seen.json")
scaling = ray.train.ScalingConfig(num_workers=2)
ray.train.torch.TorchTrainer(train, train_loop_config={"file": file}, scaling_config=scaling).fit()
with open(file) as seen:
    plain, sampled = json.load(seen)
print(ray.__version__, dict(zip(NAMES, plain)), "with a sampler of one's own", dict(zip(NAMES, sampled)))
assert plain == [1, False, 2, True] and sampled == [1, True, 8, False]
ray.shutdown()
PY
