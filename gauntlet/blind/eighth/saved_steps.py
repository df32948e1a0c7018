"""The layers of a small BERT are tuned with Hugging Face's Trainer, on a machine that may be taken away any time: the
bar stands still every few updates (huggingface/transformers#10026, deepchem/deepchem#458).

Right: between the steps: a checkpoint of the whole model, some 60 MB of which most is frozen and never changes, is
written every five updates, `save_steps=5`: less often (by what may be lost, such as every few hundred updates), or only
what is trained; not the input, which is in memory, and not the evaluation, of which there is none.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = "torch", "the Trainer saves the model, some 60 MB, every five updates", "run"


def train(run):
    import transformers

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    texts = [
        {"input_ids": generator.integers(0, 60_000, 24), "attention_mask": np.ones(24, int), "labels": i % 3}
        for i in range(960)
    ]
    config = transformers.BertConfig(
        vocab_size=60_000, num_labels=3, hidden_size=256, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=32
    )  # fmt: skip
    saving = {"save_strategy": "no"} if run.does("without") else {"save_steps": 5, "save_total_limit": 2}
    arguments = transformers.TrainingArguments(
        str(folder() / "kept"), num_train_epochs=3, per_device_train_batch_size=8, report_to="none", use_cpu=True,
        disable_tqdm=True, optim="adamw_torch", **saving
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    model.bert.embeddings.requires_grad_(False)
    trainer = transformers.Trainer(model, arguments, train_dataset=texts)
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
