#!/usr/bin/env bash
# transformers 4.57.6: `gradient_accumulation_steps=4`, ten batches of four samples.
# Guess: each batch is fetched between the forward passes of a step. Seen: all four are fetched (and one of the next
# update) before `on_step_begin`: a timer from there to `on_step_end` sees no wait for input, and five batches are held.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check \
    transformers==4.57.6 accelerate==1.15.0 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY' 2>/dev/null
import torch, transformers
order = []

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        order.append("fetch" if index % 4 == 0 else "")
        return {"x": torch.full((2,), float(index)), "labels": torch.zeros(1)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        order.append("forward")
        return {"loss": (self.layer(x) - labels).pow(2).mean()}

class Hooks(transformers.TrainerCallback):
    def on_step_begin(self, *_, **__):
        order.append("begin")
    def on_step_end(self, *_, **__):
        order.append("end")

settings = dict(gradient_accumulation_steps=4, per_device_train_batch_size=4, num_train_epochs=1, use_cpu=True)
quiet = dict(report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no")

class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

arguments = transformers.TrainingArguments("out", **settings, **quiet)
InOrder(Model(), arguments, train_dataset=Data(), callbacks=[Hooks()]).train()
order = [event for event in order if event]
before = order[: order.index("begin")]
within = order[order.index("begin") : order.index("end")]
print(transformers.__version__, "before the first step", before, "within it", within)
assert before == ["fetch"] * 5 and within == ["begin"] + ["forward"] * 4
PY
