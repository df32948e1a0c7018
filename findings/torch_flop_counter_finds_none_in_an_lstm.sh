#!/usr/bin/env bash
# torch 2.13.0 (CPU): `FlopCounterMode` over an LSTM, a GRU, attention, and a transformer's layer in training and evaluation.
# Guess: their matrix products are counted. Seen: of the GRU and of training; none at all of the LSTM, of
# `scaled_dot_product_attention` and of the layer in evaluation, which are operations of their own, and nothing says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import torch
from torch.utils.flop_counter import FlopCounterMode

def flops(function, *arguments):
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return counter.get_total_flops()

sequence, heads = torch.ones(4, 10, 16), torch.ones(1, 2, 8, 16)
layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
counted = {
    "gru": flops(torch.nn.GRU(16, 32), sequence),
    "layer in training": flops(layer, sequence),
    "lstm": flops(torch.nn.LSTM(16, 32), sequence),
    "attention": flops(torch.nn.functional.scaled_dot_product_attention, heads, heads, heads),
}
layer.eval()
with torch.no_grad():
    counted["layer in evaluation"] = flops(layer, sequence)
print(torch.__version__, counted)
assert counted["gru"] and counted["layer in training"]
assert not any(counted[name] for name in ("lstm", "attention", "layer in evaluation"))
PY
