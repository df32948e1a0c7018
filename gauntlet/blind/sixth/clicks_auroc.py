"""Clicks on advertisements, a LightningModule that shows the area under the ROC curve in its progress bar, by
torchmetrics' `compute` after each `update` (Lightning-AI/torchmetrics#1461: "AUROC stores all states").

Right: the steps grow longer in each epoch, in `training_step`, where `self.auroc.compute()` sorts all scores seen so
far: log the metric object once an epoch (`on_step=False`), compute it every n-th step, or give it `thresholds`; nothing
about the input. That the step takes the time, with the metric named, is right too.
"""

from gauntlet.blind import main
from gauntlet.helpers import rows, torch

BACKEND, CAUSE, USES = "torch", "training_step computes the AUROC of all scores so far in each step", "lightning"


def train(run):
    import lightning
    import torchmetrics

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows(57600, 24)))
    loader = torch.utils.data.DataLoader(data, batch_size=96, shuffle=True)

    class Clicks(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Sequential(
                torch.nn.Linear(24, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(),
                torch.nn.Linear(32, 1)
            )  # fmt: skip
            self.auroc = torchmetrics.AUROC("binary")

        def training_step(self, batch, index):
            x, y = batch
            logits = self.network(x)
            self.auroc.update(logits.detach().sigmoid(), y.int())
            if not run.does("without"):
                self.log("auroc", self.auroc.compute(), prog_bar=True)
            return torch.nn.functional.binary_cross_entropy_with_logits(logits, y)

        def on_train_epoch_end(self):
            self.log("auroc_epoch", self.auroc.compute())
            self.auroc.reset()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    run.start()
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    lightning.Trainer(max_epochs=2, callbacks=callbacks, enable_model_summary=False, **options).fit(Clicks(), loader)


if __name__ == "__main__":
    main(train)
