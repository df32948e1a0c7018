#!/usr/bin/env bash
# transformers 5.24.0, accelerate 1.15.0: a Trainer with auto_find_batch_size=True whose model has room for 8 samples of
# a batch of 32.
# Guess: the batch is halved until it fits: three attempts. Seen: each attempt has nine tenths of the
# batch before it, eleven in all; each begins the training again (on_train_begin), and only the last one ends it
# (on_train_end); the arguments keep the batch size that was asked for.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check \
  transformers==5.24.0 accelerate==1.15.0 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - 2> /dev/null <<'PY'
import torch, transformers

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        if len(x) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")  # as a GPU with room for 8 samples
        return {"loss": (self.layer(x) - labels).pow(2).mean()}

class Seen(transformers.TrainerCallback):
    begun, ended, asked = [], 0, None
    def on_train_begin(self, args, state, control, **given):
        self.begun.append(state.train_batch_size)
    def on_train_end(self, args, state, control, **given):
        Seen.ended += 1
        Seen.asked = args.per_device_train_batch_size

rows = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(64)]
arguments = transformers.TrainingArguments(
    "out", num_train_epochs=1, per_device_train_batch_size=32, auto_find_batch_size=True, use_cpu=True,
    report_to="none", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False)
transformers.Trainer(Model(), arguments, train_dataset=rows, callbacks=[Seen()]).train()
print("transformers", transformers.__version__, "batches", Seen.begun, "ends", Seen.ended, "asked for", Seen.asked)
assert Seen.begun == [32, 28, 25, 22, 19, 17, 15, 13, 11, 9, 8] and Seen.ended == 1 and Seen.asked == 32
PY
