"""A Trainer for short questions, all of which were padded to the 256 tokens that the model can take
(QData/TextAttack#737: from three hours to twenty minutes).

Right: the step itself computes mostly padding: pad to the longest of a batch, in the collator (and sort by length);
nothing about the input's source. That the step takes the time, without the padding, is partly right.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "texts of 12 tokens are padded to 256, and the step computes the padding", "run"


def train(run):
    import transformers

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    questions = [rng.integers(1, 2000, rng.integers(6, 19)).tolist() for _ in range(640)]

    def padded(row, length):
        return row + [0] * (length - len(row))

    samples = [
        {"tokens": row if run.does("without") else padded(row, 256), "labels": i % 6} for i, row in enumerate(questions)
    ]

    def collate(batch):
        longest = max(len(one["tokens"]) for one in batch)
        tokens = torch.tensor([padded(one["tokens"], longest) for one in batch])
        return {"tokens": tokens, "labels": torch.tensor([one["labels"] for one in batch])}

    class Sorter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(2000, 64)
            layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = torch.nn.Linear(64, 6)

        def forward(self, tokens, labels):
            hidden = self.layers(self.embed(tokens), src_key_padding_mask=tokens == 0)
            logits = self.out(hidden[:, 0])
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=16,
        num_train_epochs=1,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(Sorter(), arguments, train_dataset=samples, data_collator=collate)
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
