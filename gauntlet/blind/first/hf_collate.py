"""A Trainer that tokenises raw text in its collate function at each batch (huggingface/transformers#34059).

Right: the DataLoader tokenises in the training process: `dataloader_num_workers=`, or tokenise once before
training.
"""

import numpy as np

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "collate_fn tokenises raw text in Python", "run"


def pieces(text):
    found, at = [], 0
    while at < len(text):
        length = next((n for n in (5, 4, 3, 2) if hash(text[at : at + n]) % 7 == 0), 1)
        found.append(hash(text[at : at + length]) % 1000)
        at += length
    return found[:64]


def train(run):
    import transformers

    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefgh "), 1500)) for _ in range(1024)]
    ready = {text: pieces(text) for text in texts} if run.does("without") else {}

    def collate(samples):
        rows = [ready.get(sample["text"]) or pieces(sample["text"]) for sample in samples]
        return {"tokens": torch.tensor(rows), "labels": torch.tensor([sample["label"] for sample in samples])}

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 2)

        def forward(self, tokens, labels):
            logits = self.out(self.embed(tokens).mean(1))
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=16,
        num_train_epochs=6,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    samples = [{"text": text, "label": i % 2} for i, text in enumerate(texts)]
    trainer = transformers.Trainer(Classifier(), arguments, train_dataset=samples, data_collator=collate)
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
