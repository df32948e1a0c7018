"""A `Trainer` learns to sort support mails, most of which are a line or two and some a page long; the card is busy, but
an epoch takes far longer than the number of tokens suggests (unslothai/unsloth#1155).

Right: the sampler mixes short and long texts, so that most of each batch is padding up to its longest text: batches of
similar lengths (`train_sampling_strategy="group_by_length"`, once `group_by_length=True`); not the tokenizing, which is
done ahead, not the workers of the loader, and not that `max_length` would be padded to (it is not).
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "batches mix short and long texts, and most of each is padding", "run"


def train(run):
    import transformers

    transformers.set_seed(0)
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(2.9, 1.1, 512).astype(int), 4, 320)
    mails = [{"input_ids": generator.integers(5, 3000, length).tolist(), "labels": length % 4} for length in lengths]

    def padded(texts):
        longest = max(len(text["input_ids"]) for text in texts)
        ids = torch.zeros(len(texts), longest, dtype=torch.long)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text["input_ids"])] = torch.tensor(text["input_ids"])
        return {
            "input_ids": ids,
            "attention_mask": (ids > 0).long(),
            "labels": torch.tensor([int(text["labels"]) for text in texts]),
        }

    config = transformers.BertConfig(
        vocab_size=3000, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, num_labels=4
    )
    grouped = {"train_sampling_strategy": "group_by_length"} if run.does("without") else {}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder()),
        per_device_train_batch_size=16,
        num_train_epochs=2,
        learning_rate=1e-4,
        logging_steps=16,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **grouped,
    )
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=arguments,
        train_dataset=mails,
        data_collator=padded,
    )
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
