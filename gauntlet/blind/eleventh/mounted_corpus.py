"""A `Trainer` in a hosted notebook; the corpus lies in a mounted drive, one small JSON file a text, each of which
takes 8 ms to open, and `dataloader_num_workers` is what it is by default.

Right: the input: the files are opened one after another over the network (slept, not computed), in each epoch and in
the training process: workers (`dataloader_num_workers=4` or more), or copy the corpus to the local disk or into memory
once; not the tokens (they are in the files), not the model, and not the batch size.
"""

import json
import time

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "files are opened one by one from a mounted drive in each epoch", "run"
REMEDY = "four workers"


class Corpus(torch.utils.data.Dataset):
    """Texts of a folder, in a drive or not."""

    def __init__(self, files, mounted):
        self.files, self.mounted = files, mounted

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        if self.mounted:
            time.sleep(0.008)  # the drive answers
        text = json.loads(self.files[number].read_text())
        return {"input_ids": text["tokens"], "attention_mask": [1] * len(text["tokens"]), "labels": text["kind"]}


def train(run):
    import transformers

    transformers.set_seed(0)
    generator, path = np.random.default_rng(0), folder()
    files = [path / f"{number}.json" for number in range(400)]
    for file in files:
        text = {"tokens": generator.integers(5, 2000, 32).tolist(), "kind": int(generator.integers(3))}
        file.write_text(json.dumps(text))
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=3
    )
    workers = 4 if run.does("remedy") else 0
    arguments = transformers.TrainingArguments(
        output_dir=str(folder()),
        per_device_train_batch_size=16,
        num_train_epochs=4,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_num_workers=workers,
        dataloader_persistent_workers=workers > 0,
    )
    run.start()
    corpus = Corpus(files, mounted=not run.does("without"))
    if run.does("without"):
        time.sleep(0.008 * len(files))  # cp -r
    model = transformers.BertForSequenceClassification(config)
    transformers.Trainer(model=model, args=arguments, train_dataset=corpus).train()


if __name__ == "__main__":
    main(train)
