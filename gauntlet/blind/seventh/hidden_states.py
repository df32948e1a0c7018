"""A small BERT with Hugging Face's Trainer; `output_hidden_states=True` is left in its configuration from a look at
the layers, and the Trainer joins all layers' states of all evaluated texts (huggingface/transformers#20887). Two
other processes are busy.

Right: the evaluations after each epoch take much of the time, since `output_hidden_states=True` makes the Trainer
join (and pad) the hidden states of all layers batch by batch: leave it out, or keep the logits only
(`preprocess_logits_for_metrics`, `prediction_loss_only`, `ignore_keys_for_eval`); that there are fewer evaluations is
half an answer; not the training's input, and not the busy neighbours alone.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, np, torch

BACKEND, CAUSE, USES = (
    "torch",
    "output_hidden_states=True makes each evaluation join all layers' states; two other processes are busy",
    "run",
)
BUSY = "plain without"


def train(run):
    import transformers

    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=96, output_hidden_states=not run.does("without")
    )  # fmt: skip
    texts = [
        {"input_ids": generator.integers(0, 2000, 96), "attention_mask": np.ones(96, int), "labels": i % 2}
        for i in range(2560)
    ]

    def accuracy(prediction):
        logits = prediction.predictions
        logits = logits[0] if isinstance(logits, tuple) else logits
        return {"accuracy": float((logits.argmax(-1) == prediction.label_ids).mean())}

    arguments = transformers.TrainingArguments(
        str(folder()), num_train_epochs=2, per_device_train_batch_size=16, per_device_eval_batch_size=8,
        eval_strategy="epoch", save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True
    )  # fmt: skip
    run.start()
    model = transformers.BertForSequenceClassification(config)
    data = {"train_dataset": texts[:1280], "eval_dataset": texts[1280:]}
    transformers.Trainer(model, arguments, compute_metrics=accuracy, **data).train()


if __name__ == "__main__":
    main(train)
