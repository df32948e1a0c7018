"""A Trainer with a callback that writes a sample text every few steps, one character at a time (fine-tuning notebooks).

Right: `on_step_end` of the program's callback (generating text) holds training up: every few hundred steps, or shorter
samples; nothing about the input.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "a TrainerCallback generates a text every 4 steps", "run"


def train(run):
    import transformers

    class Writer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = torch.nn.Embedding(96, 64), torch.nn.Embedding(128, 64)
            layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
            self.blocks, self.out = torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(64, 96)

        def logits(self, tokens):
            length = tokens.shape[1]
            mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
            hidden = self.embed(tokens) + self.place(torch.arange(length))
            return self.out(self.blocks(hidden, mask=mask, is_causal=True))

        def forward(self, tokens, labels):
            logits = self.logits(tokens)
            return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    class Samples(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if run.does("without") or state.global_step % 4:
                return
            tokens = torch.zeros((1, 1), dtype=torch.long)
            with torch.no_grad():
                for _ in range(120):
                    chances = model.logits(tokens)[0, -1].softmax(0)
                    tokens = torch.cat([tokens, torch.multinomial(chances, 1)[None]], 1)
            text = "".join(chr(32 + token) for token in tokens[0].tolist())
            (folder() / "samples.txt").write_text(text)

    torch.manual_seed(0)
    blocks = torch.randint(0, 96, (2400, 65))
    samples = [{"tokens": block[:-1], "labels": block[1:]} for block in blocks]
    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(Writer(), arguments, train_dataset=samples, callbacks=[Samples()])
    run.start()
    trainer.train()


if __name__ == "__main__":
    main(train)
