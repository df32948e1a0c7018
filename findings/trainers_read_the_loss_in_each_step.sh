#!/usr/bin/env bash
# transformers 5.24.0, lightning 2.6.6: how often a training of 40 steps without a line of the user's reads a tensor as
# a Python number or truth value; on a GPU each such read waits until all that was started is done.
# Guess: at logging steps alone. Seen: transformers' Trainer reads the loss twice in every step (is it nan, is it
# infinite), none with `logging_nan_inf_filter=False`; Lightning reads each value of `self.log(..., prog_bar=True)` in
# every step, though the bar is drawn once in 20, and once more as it is drawn; one without `prog_bar` once an epoch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check \
    lightning==2.6.6 "transformers==5.24.0" accelerate==1.15.0 torch==2.13.0
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/env/bin/python" -W ignore - 2> /dev/null <<'PY'
import lightning, torch, transformers
from torch.overrides import TorchFunctionMode

class Reads(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in ("item", "__bool__", "__float__", "__int__")
        return function(*args, **(kwargs or {}))

x = torch.randn(640, 8)
y = (x.sum(1) > 0).long()

class Classifier(lightning.LightningModule):
    def __init__(self, **logged):
        super().__init__()
        self.logged, self.layer = logged, torch.nn.Linear(8, 2)
    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
        self.log("loss", loss, **self.logged)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class Scored(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def by_lightning(**logged):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    bar = lightning.pytorch.callbacks.TQDMProgressBar(refresh_rate=20)
    silent = dict(logger=False, enable_checkpointing=False, enable_model_summary=False, accelerator="cpu")
    trainer = lightning.Trainer(max_epochs=1, callbacks=[bar], **silent)
    with Reads() as reads:
        trainer.fit(Classifier(**logged), loader)
    return reads.count

def by_transformers(**how):
    silent = dict(report_to=[], save_strategy="no", logging_steps=1000, use_cpu=True, disable_tqdm=True)
    arguments = transformers.TrainingArguments("out", num_train_epochs=1, per_device_train_batch_size=16, **silent, **how)
    trainer = transformers.Trainer(Scored(), arguments, train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y)])
    with Reads() as reads:
        trainer.train()
    return reads.count

seen = by_lightning(), by_lightning(prog_bar=True), by_transformers(), by_transformers(logging_nan_inf_filter=False)
print(lightning.__version__, transformers.__version__, "reads in 40 steps", seen)
assert seen[0] < 10 and seen[3] < 10 and 40 < seen[1] < 60 and 75 < seen[2] < 100, seen
PY
