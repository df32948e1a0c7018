"""Intents of chat messages with a small BERT, in a loop of one's own with Accelerate: gradients of two batches make an
update, the loss of each batch is gathered, and an epoch ends with an evaluation and a checkpoint. Nothing is wrong.

Right: no finding, or nothing that would make it much faster: there is one process, so that to gather costs nothing, a
tenth of the messages is evaluated, and the checkpoint has 6 MB; not the gathered losses, not the accumulation, not the
checkpoints, and not the input, which is in memory and of one length.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, torch

BACKEND, CAUSE, USES = "torch", "", "monitor"
NOISE = "losses are gathered after each batch, and an epoch ends with an evaluation and a checkpoint"


def train(run):
    import accelerate
    import transformers

    accelerate.utils.set_seed(0)
    data = torch.utils.data
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)

    def messages(count):
        return data.TensorDataset(torch.randint(5, 2000, (count, 48)), torch.randint(0, 8, (count,)))

    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, num_labels=8
    )
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    loader, held_out = data.DataLoader(messages(960), 16, shuffle=True), data.DataLoader(messages(96), 32)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 10, 150)
    model, optimizer, loader, held_out, schedule = accelerator.prepare(model, optimizer, loader, held_out, schedule)
    path, noisy = folder(), not run.does("without")
    with run.monitor() as monitor:
        for epoch in range(5):
            model.train()
            seen = 0.0
            for word, intent in monitor.batches(loader):
                with accelerator.accumulate(model):
                    loss = model(input_ids=word, labels=intent).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                if noisy:
                    seen += accelerator.gather(loss.detach()).mean().item()
            if noisy:
                model.eval()
                with torch.no_grad(), monitor.phase("validation"):
                    right = sum((model(word).logits.argmax(-1) == intent).sum().item() for word, intent in held_out)
                accelerator.save_state(str(path / "last"))
                accelerator.print(f"epoch {epoch}: {seen / len(loader):.3f}, {right} of 96")


if __name__ == "__main__":
    main(train)
