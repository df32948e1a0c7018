"""Power of wind turbines with Lightning; since a training once diverged in the middle of an epoch, the validation runs
every eight batches, `val_check_interval=8`, over the whole held-out year.

Right: the validation: 48 batches are validated after each 8 that are trained: less often (`val_check_interval=1.0`,
which is the default), or a part of it (`limit_val_batches`); not the input, which is in memory, not the steps, and not
the logging as such.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "val_check_interval=8 validates 48 batches after each 8 of training", "run"


def train(run):
    import logging
    import warnings

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    lightning.seed_everything(0)
    nn, data = torch.nn, torch.utils.data

    class Turbines(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.GRU(10, 48, batch_first=True), nn.Linear(48, 1)

        def forward(self, weather):
            return self.head(self.cells(weather)[0][:, -1])[:, 0]

        def training_step(self, batch, number):
            loss = nn.functional.mse_loss(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, number):
            self.log("val_loss", nn.functional.mse_loss(self(batch[0]), batch[1]), prog_bar=True)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    def days(count):
        return data.TensorDataset(torch.randn(count, 24, 10), torch.randn(count))

    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=1.0 if run.does("without") else 8,
    )
    loaders = data.DataLoader(days(64 * 128), 64, shuffle=True), data.DataLoader(days(64 * 48), 64)
    run.start()
    trainer.fit(Turbines(), *loaders)


if __name__ == "__main__":
    main(train)
