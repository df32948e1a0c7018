#!/usr/bin/env bash
# lightning 2.6.6: `max_steps=5` with two optimizers, each stepped once a batch (manual optimization, as GANs do).
# Guess: five batches. Seen: three, and `global_step` is 6: it counts the steps of each optimizer, so a schedule, a
# checkpoint every n steps and a rate of steps per second are all off by the number of optimizers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check lightning==2.6.6 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import logging
import lightning, torch
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
batches = []

class Two(lightning.pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.parts = torch.nn.ModuleList([torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)])
    def training_step(self, batch, number):
        batches.append(number)
        for part, optimizer in zip(self.parts, self.optimizers()):
            optimizer.zero_grad()
            self.manual_backward(part(batch[0]).sum())
            optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), 0.01) for part in self.parts]

data = torch.utils.data.TensorDataset(torch.ones(40, 2))
silent = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = lightning.pytorch.Trainer(max_steps=5, max_epochs=-1, accelerator="cpu", **silent)
trainer.fit(Two(), torch.utils.data.DataLoader(data, batch_size=4))
print(lightning.__version__, "batches", len(batches), "global_step", trainer.global_step)
assert len(batches) == 3 and trainer.global_step == 6
PY
