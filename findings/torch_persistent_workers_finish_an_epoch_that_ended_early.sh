#!/usr/bin/env bash
# torch 2.13.0: epochs that end early (3 of 100 batches of 0.2 s) on a DataLoader with two persistent workers.
# Guess: the next epoch begins at once, as it does after a whole one. Seen: `iter(loader)` waits until the workers have
# made the batches that they were asked for ahead, two each, and throws them away: 0.4 s here, as long as the start of
# new workers takes. So persistent workers gain nothing there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
cd "$folder"
cat > program.py <<'PY'
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        time.sleep(0.05)
        return number

def begins(samples, stop, persistent):
    """Seconds that `iter` takes in the second to fourth epoch."""
    data = torch.utils.data.Subset(Slow(), range(samples))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, persistent_workers=persistent)
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        batches = iter(loader)
        seconds.append(round(time.perf_counter() - began, 2))
        for number, _ in enumerate(batches, 1):
            if number == stop:
                break
    return seconds[1:]

if __name__ == "__main__":
    early, whole = begins(400, 3, True), begins(12, None, True)
    print("torch", torch.__version__, "iter() after three of 100 batches", early, "s, after three of three", whole, "s")
    assert min(early) > 0.18 and min(whole) < 0.1
PY
"$folder/env/bin/python" -W ignore program.py
