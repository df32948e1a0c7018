"""A Trainer for short texts that pads to the longest of a batch, sums the gradients of two batches, and logs the
loss of each update. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: logging costs little, and the evaluation is small.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "", "run"
NOISE = "the loss is logged at each update; a small evaluation after each epoch"


def train(run):
    import transformers

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 3000, rng.integers(24, 49)).tolist() for _ in range(560)]
    samples = [{"input_ids": text, "labels": text[0] % 4} for text in texts]

    def collate(batch):
        longest = max(len(one["input_ids"]) for one in batch)
        rows = [one["input_ids"] + [0] * (longest - len(one["input_ids"])) for one in batch]
        tokens = torch.tensor(rows)
        labels = torch.tensor([one["labels"] for one in batch])
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}

    noise = {"logging_steps": 1, "eval_strategy": "epoch"}
    if run.does("without"):
        noise = {"logging_strategy": "no"}
    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=40,
        gradient_accumulation_steps=2,
        num_train_epochs=6,
        learning_rate=3e-4,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **noise,
    )
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 384}
    config = transformers.BertConfig(vocab_size=3000, num_labels=4, max_position_embeddings=64, **sizes)
    run.start()
    model = transformers.BertForSequenceClassification(config)
    data = {"train_dataset": samples[:480], "eval_dataset": samples[480:]}
    transformers.Trainer(model, arguments, data_collator=collate, **data).train()


if __name__ == "__main__":
    main(train)
