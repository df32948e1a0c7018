"""A LightningModule that reads and splits its texts in `train_dataloader`, which Lightning is told to call again for
each epoch (Lightning-AI/pytorch-lightning#1181).

Right: the time before the first batch of each epoch passes in `train_dataloader`, which parses the same file again:
read once, in `setup` (or leave reload_dataloaders_every_n_epochs at 0); the batches after the first wait for little.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, sentences, torch

BACKEND, CAUSE, USES = "torch", "reload_dataloaders_every_n_epochs=1 parses the texts anew in each epoch", "lightning"


def train(run):
    import json
    import re

    import lightning

    torch.manual_seed(0)
    with (folder() / "reviews.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text, "stars": len(text) % 5}) + "\n" for text in sentences(8000, 80))

    class Reviews(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.words = {}
            self.embed = torch.nn.EmbeddingBag(5000, 64)
            self.out = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))

        def train_dataloader(self):
            numbers, stars = [], []
            with (folder() / "reviews.jsonl").open() as file:
                for line in map(json.loads, file):
                    found = re.findall(r"[a-z']+|[.,!?]", line["text"].lower())
                    row = [self.words.setdefault(word, len(self.words) + 1) for word in found]
                    numbers.append((row + [0] * 80)[:80])
                    stars.append(line["stars"])
            data = torch.utils.data.TensorDataset(torch.tensor(numbers), torch.tensor(stars))
            return torch.utils.data.DataLoader(data, batch_size=250, shuffle=True)

        def training_step(self, batch, index):
            return torch.nn.functional.cross_entropy(self.out(self.embed(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    run.start()
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options["reload_dataloaders_every_n_epochs"] = 0 if run.does("without") else 1
    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    lightning.Trainer(max_epochs=25, callbacks=callbacks, enable_model_summary=False, **options).fit(Reviews())


if __name__ == "__main__":
    main(train)
