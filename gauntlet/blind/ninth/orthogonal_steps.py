"""A recurrent network with an orthogonal matrix between its steps learns to copy sequences, in Lightning; with
`parametrizations.orthogonal` an epoch takes several times as long as with a plain matrix (the docs of `parametrize`).

Right: the orthogonal matrix is computed anew from its parameters each time that it is used, in each of 60 time steps of
each batch: `with torch.nn.utils.parametrize.cached():` around the forward pass; not the input, not the Python loop over
the time steps first of all, and not Lightning's logging.
"""

from gauntlet.blind import main
from gauntlet.helpers import torch

BACKEND, CAUSE, USES = "torch", "the orthogonal matrix is computed anew in each of 60 time steps", "run"


def train(run):
    import contextlib
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0)
    nn, parametrize = torch.nn, torch.nn.utils.parametrize

    class Copier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.symbols = nn.Embedding(12, 128)
            self.carried = nn.utils.parametrizations.orthogonal(nn.Linear(128, 128, bias=False))
            self.head = nn.Linear(128, 12)

        def forward(self, text):
            hidden = torch.zeros(len(text), 128)
            for now in self.symbols(text).unbind(1):
                hidden = torch.tanh(self.carried(hidden) + now)
            return self.head(hidden)

        def training_step(self, batch, number):
            text, answer = batch
            with parametrize.cached() if run.does("without") else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(self(text), answer)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.parameters(), 1e-4)

    text = torch.randint(0, 12, (128 * 20, 60))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(text, text[:, 5]), 128, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    run.start()
    trainer.fit(Copier(), loader)


if __name__ == "__main__":
    main(train)
