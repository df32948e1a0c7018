"""A Lightning module for speech whose dataset resamples each recording when it is asked for (mozilla/TTS#405).

Right: the DataLoader resamples in the training process: resample the files once before training, or `num_workers=`
(no more than there are free cores), at `__getitem__`.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "Dataset.__getitem__ resamples each recording from 44.1 to 16 kHz", "lightning"


def train(run):
    import lightning
    from scipy import signal

    waves = np.random.default_rng(0).normal(size=(40, 66150)).astype("float32")

    def at_16_khz(wave):
        return signal.resample_poly(wave, 160, 441)[:16000].astype("float32")

    ready = [at_16_khz(wave) for wave in waves] if run.does("without") else []

    class Recordings(torch.utils.data.Dataset):
        def __len__(self):
            return 480

        def __getitem__(self, i):
            return (ready[i % 40] if ready else at_16_khz(waves[i % 40])), i % 4

    class Speech(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Conv1d(1, 16, 80, 16), torch.nn.ReLU(), torch.nn.Conv1d(16, 32, 3, 2), torch.nn.ReLU()
            )
            self.out = torch.nn.Linear(32, 4)

        def training_step(self, batch):
            waves, labels = batch
            logits = self.out(self.layers(waves[:, None]).mean(2))
            return torch.nn.functional.cross_entropy(logits, labels)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    loader = torch.utils.data.DataLoader(Recordings(), batch_size=16, shuffle=True)
    run.start()
    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    trainer = lightning.Trainer(
        max_epochs=12,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Speech(), loader)


if __name__ == "__main__":
    main(train)
