"""A `Trainer` with one text a step and 16 steps to an update, since a larger model once ran out of memory with more;
this one is small, and an epoch takes several times as long as it could.

Right: batches of one text, `per_device_train_batch_size=1` with `gradient_accumulation_steps=16`: 16 texts in a batch
(8 with 2, and so on) give the same updates with fewer, larger steps; not the input, which is in memory and has one
length, not the logging, and not that gradients are accumulated as such.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np

BACKEND, CAUSE, USES = "torch", "one text a step, and 16 steps to an update", "run"


def train(run):
    import transformers

    transformers.set_seed(0)
    generator = np.random.default_rng(0)
    texts = [{"input_ids": generator.integers(5, 2000, 32).tolist()} for _ in range(16 * 24)]
    for number, text in enumerate(texts):
        text["labels"] = number % 3
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, num_labels=3
    )
    together = 16 if run.does("without") else 1
    arguments = transformers.TrainingArguments(
        output_dir=str(folder()),
        per_device_train_batch_size=together,
        gradient_accumulation_steps=16 // together,
        num_train_epochs=2,
        logging_steps=8,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config), args=arguments, train_dataset=texts
    )
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
