"""A LightningModule on photos that a worker flips, with a log of each step in a CSV file, a checkpoint and a validation
after each epoch, and a schedule. Nothing is wrong.

Right: no finding, or nothing that would make it much faster.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, images, torch

BACKEND, CAUSE, USES = "torch", "", "lightning"
NOISE = "each step is logged; a checkpoint and a validation on 80 photos after each epoch"


def train(run):
    import lightning

    torch.manual_seed(0)
    photos = torch.from_numpy(images(1040, 40)).permute(0, 3, 1, 2).contiguous()

    class Photos(torch.utils.data.Dataset):
        def __init__(self, chosen):
            self.chosen = chosen

        def __len__(self):
            return len(self.chosen)

        def __getitem__(self, i):
            photo = photos[self.chosen[i]].float() / 255
            return photo.flip(2) if torch.rand(()) < 0.5 else photo, self.chosen[i] % 10

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            layers, inside = [], 3
            for filters in (32, 64, 96):
                layers += [torch.nn.Conv2d(inside, filters, 3, padding=1), torch.nn.BatchNorm2d(filters)]
                layers += [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
                inside = filters
            self.network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(96 * 25, 10))

        def training_step(self, batch, index):
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            if not run.does("without"):
                self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("held", (self.network(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)]

    run.start()
    plain = not run.does("without")
    callbacks = [lightning.pytorch.callbacks.ModelCheckpoint(folder() / "kept")] if plain else []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks.append(lightning_callback(run.log_dir))
    logger = lightning.pytorch.loggers.CSVLogger(folder()) if plain else False
    options = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": logger}
    options |= {"callbacks": callbacks, "enable_checkpointing": plain, "log_every_n_steps": 1, "max_epochs": 6}
    loader = torch.utils.data.DataLoader
    photos_in = loader(Photos(range(960)), 40, shuffle=True, num_workers=1, persistent_workers=True)
    held = [loader(Photos(range(960, 1040)), 40)] if plain else []
    lightning.Trainer(**options).fit(Classifier(), photos_in, *held)


if __name__ == "__main__":
    main(train)
