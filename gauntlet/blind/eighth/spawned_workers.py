"""A LightningModule on a machine where worker processes are spawned, as on Windows and macOS: between one epoch and
the next nothing happens for seconds, and "in plain PyTorch it was the same" (Lightning-AI/pytorch-lightning#18862).

Right: the input, at the beginning of each epoch: two workers are started anew, which import PyTorch and get a copy of
the data, for an epoch that is shorter than that: `persistent_workers=True` (or no workers, or `fork` where it is
possible); not that a sample is costly, not more workers, and not Lightning's callbacks.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "two spawned workers start anew in each short epoch", "lightning"


class Spectra:
    """Spectra of minerals, each with noise of its own."""

    def __init__(self):
        self.values = np.random.default_rng(0).normal(size=(960, 512)).astype("float32")

    def __len__(self):
        return 960

    def __getitem__(self, i):
        noise = np.random.normal(0, 0.05, 512).astype("float32")
        return self.values[i] + noise, i % 8


def train(run):
    import lightning

    torch.manual_seed(0)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Sequential(
                torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                torch.nn.Linear(512, 8)
            )  # fmt: skip

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    run.start()
    loader = torch.utils.data.DataLoader(
        Spectra(), batch_size=32, shuffle=True, num_workers=2, multiprocessing_context="spawn",
        persistent_workers=run.does("without")
    )  # fmt: skip
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=6, callbacks=callbacks, enable_model_summary=False, **options)
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main(train)
