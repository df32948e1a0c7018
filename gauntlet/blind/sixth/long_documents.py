"""A Trainer whose data set calls the tokenizer in `__getitem__`, on whole documents, of which the model reads 64 tokens
(a frequent form of a first fine-tuning; facebookresearch/DPR#113: "GPU usage is low").

Right: the input: `__getitem__` tokenizes each document again in each epoch, all of it, and cuts it afterwards: tokenize
once, before training (a batch of texts at a time, or `dataset.map`), or cut the text first; workers would help by as
many cores as are free.
"""

from gauntlet.blind import main
from gauntlet.helpers import folder, sentences, torch

BACKEND, CAUSE, USES = "torch", "__getitem__ tokenizes whole documents in each epoch and keeps 64 tokens", "run"


def train(run):
    import tokenizers
    import transformers

    torch.manual_seed(0)
    documents = sentences(480, 3000)
    pieces = tokenizers.BertWordPieceTokenizer()
    pieces.train_from_iterator(sentences(200), 2000, show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, pad_token="[PAD]")

    def tokens(text):
        found = tokenizer(text, truncation=True, max_length=64, padding="max_length", return_token_type_ids=False)
        return {name: torch.tensor(numbers) for name, numbers in found.items()}

    class Documents(torch.utils.data.Dataset):
        def __init__(self):
            self.ready = [tokens(text) for text in documents] if run.does("without") else None

        def __len__(self):
            return len(documents)

        def __getitem__(self, i):
            return (self.ready[i] if self.ready else tokens(documents[i])) | {"labels": i % 3}

    arguments = transformers.TrainingArguments(
        str(folder()),
        per_device_train_batch_size=16,
        num_train_epochs=5,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    config = transformers.BertConfig(vocab_size=2000, num_labels=3, **sizes)
    run.start()
    model = transformers.BertForSequenceClassification(config)
    transformers.Trainer(model, arguments, train_dataset=Documents()).train()


if __name__ == "__main__":
    main(train)
