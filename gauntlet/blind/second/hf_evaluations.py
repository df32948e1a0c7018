"""A Hugging Face Trainer that evaluates a large set every ten steps (a forum's "training stops every few seconds").

Right: evaluation holds training up: a larger `eval_steps`, or fewer samples.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "eval_strategy='steps', every 10 steps, over 4000 samples", "run"


def train(run):
    import transformers

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = torch.nn.Embedding(500, 32), torch.nn.LSTM(32, 32, batch_first=True)
            self.out = torch.nn.Linear(32, 5)

        def forward(self, tokens, labels):
            logits = self.out(self.lstm(self.embed(tokens))[0][:, -1])
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    samples = [{"tokens": torch.randint(0, 500, (24,)), "labels": i % 5} for i in range(4000)]
    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        max_steps=120,
        eval_strategy="no" if run.does("without") else "steps",
        eval_steps=10,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(Tagger(), arguments, train_dataset=samples, eval_dataset=samples)
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
