"""A deep narrow network on flights' delays, in Lightning; to find out why the loss jumped once, the norms of all
gradients are logged before each update, as its documentation shows.

Right: `on_before_optimizer_step` computes and logs the norm of each of some hundred gradients in each step
(`grad_norm`, `log_dict`): every 50th step, or only the total norm (`clip_grad_norm_` or `get_total_norm` gives it), or
leave it out; not the input, which is in memory, and not the network or its batch size first of all.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "the norms of all gradients are computed and logged in each step", "run"


def train(run):
    import logging

    import lightning
    from lightning.pytorch.utilities import grad_norm

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0)
    nn = torch.nn

    class Delays(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            hidden = []
            for _ in range(24):
                hidden += [nn.Linear(96, 96), nn.LayerNorm(96), nn.ReLU()]
            self.network = nn.Sequential(nn.Linear(30, 96), nn.ReLU(), *hidden, nn.Linear(96, 1))

        def training_step(self, batch, number):
            flight, delay = batch
            loss = nn.functional.l1_loss(self.network(flight)[:, 0], delay)
            self.log("loss", loss)
            return loss

        def on_before_optimizer_step(self, optimizer):
            if not run.does("without"):
                self.log_dict(grad_norm(self, norm_type=2))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3, 0.9)

    flights = torch.utils.data.TensorDataset(torch.randn(64 * 100, 30), torch.randn(64 * 100))
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.start()
    trainer.fit(Delays(), torch.utils.data.DataLoader(flights, 64, shuffle=True))


if __name__ == "__main__":
    main(train)
