"""Lightning saves the whole state of an embedding model every five steps (Lightning-AI/pytorch-lightning#10389).

Right: checkpoints hold training up: `every_n_train_steps` larger, or `save_weights_only=True`.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "ModelCheckpoint(every_n_train_steps=5) of 46 MB", "lightning"


def train(run):
    import lightning

    class Recommender(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.items, self.out = torch.nn.Embedding(60_000, 64), torch.nn.Linear(64, 1)

        def training_step(self, batch):
            x, y = batch
            return torch.nn.functional.mse_loss(self.out(self.items(x).mean(1)), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randint(0, 60_000, (1600, 10)), torch.randn(1600, 1))
    callbacks = []
    run.start()
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    if not run.does("without"):
        callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(folder(), every_n_train_steps=5))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=not run.does("without"),
        enable_progress_bar=False,
    )
    trainer.fit(Recommender(), torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))


if __name__ == "__main__":
    main(train)
