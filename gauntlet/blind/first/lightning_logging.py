"""A Lightning module whose logger rewrites its file at every step (Lightning-AI/pytorch-lightning#1986).

Right: logging at each step (`log_metrics`, on the training thread) holds training up:
`Trainer(log_every_n_steps=)`.
"""

import json

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "a logger rewrites its history at each step", "lightning"


def train(run):
    import lightning
    from lightning.pytorch.loggers.logger import Logger

    class History(Logger):
        name, version, rows = "history", 0, []

        def log_hyperparams(self, *_, **__):
            pass

        def log_metrics(self, metrics, step=None):
            self.rows.append({"step": step, **metrics, "note": "x" * 400})
            (folder() / "history.json").write_text(json.dumps(self.rows, indent=1))

    class Recurrent(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = torch.nn.LSTM(8, 32, batch_first=True), torch.nn.Linear(32, 1)

        def training_step(self, batch):
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.out(self.lstm(x)[0][:, -1]), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(3200, 16, 8), torch.randn(3200, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    run.start()
    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    trainer = lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        logger=History(),
        callbacks=callbacks,
        log_every_n_steps=200 if run.does("without") else 1,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Recurrent(), loader)


if __name__ == "__main__":
    main(train)
