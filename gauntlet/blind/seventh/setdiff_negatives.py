"""A recommender with Lightning: for each purchase four articles are drawn that the customer never bought, out of
`np.setdiff1d` of all 15,000 articles and the customer's own.

Right: the input: `np.setdiff1d` in `__getitem__` sorts all articles for each sample to draw four of them: draw at
random and draw again the few that were bought (or draw for the whole batch in `collate_fn`); not only more workers,
not the embedding, and not Lightning.
"""

from gauntlet.blind import main
from gauntlet.helpers import np, torch

BACKEND, CAUSE, USES = "torch", "np.setdiff1d of 15,000 articles for each sample, to draw four negatives", "lightning"


def train(run):
    import lightning

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    bought = [np.unique(generator.integers(0, 15_000, 30)) for _ in range(500)]
    purchases = [(customer, article) for customer, articles in enumerate(bought) for article in articles][:5120]
    articles = np.arange(15_000)

    class Purchases(torch.utils.data.Dataset):
        def __len__(self):
            return len(purchases)

        def __getitem__(self, i):
            customer, article = purchases[i]
            if run.does("without"):
                negatives = generator.integers(0, 15_000, 4)
                while (again := np.isin(negatives, bought[customer])).any():
                    negatives[again] = generator.integers(0, 15_000, again.sum())
            else:
                negatives = generator.choice(np.setdiff1d(articles, bought[customer]), 4)
            return customer, np.concatenate([[article], negatives])

    class Recommender(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.customers = torch.nn.Embedding(500, 32)
            self.articles = torch.nn.Embedding(15_000, 32, sparse=True)
            self.tower = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

        def training_step(self, batch, index):
            customer, offered = batch
            customer = self.customers(customer)[:, None].expand(-1, 5, -1)
            scores = self.tower(torch.cat([customer, self.articles(offered)], -1))[..., 0]
            return torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05)

    callbacks = []
    if run.log_dir:
        from gpu_util_callback import lightning_callback

        callbacks = [lightning_callback(run.log_dir)]
    run.start()
    loader = torch.utils.data.DataLoader(Purchases(), batch_size=64, shuffle=True)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    lightning.Trainer(max_epochs=1, callbacks=callbacks, enable_model_summary=False, **options).fit(
        Recommender(), loader
    )


if __name__ == "__main__":
    main(train)
