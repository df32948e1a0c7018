#!/usr/bin/env bash
# torch 2.13.0: 30 steps of a compiled function in which one thing changes, and no shape.
# Guess: a number that changes is
# made variable at its second value, wherever it stands. Seen: that is so for arguments, for a float of the program's
# module and for an optimizer's learning rate; an int of a module (`self.n += 1`), a Dropout's p and a list's length have
# it compiled eight times, and from then on the function runs uncompiled, with dynamic=True as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
cd "$folder"
cat > program.py <<'PY'
import torch

compiled, runs = [], []

def backend(graph, inputs):
    compiled.append(graph)
    def run(*given):
        runs.append(1)
        return graph.forward(*given)
    return run

class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.scale = 0, 0.5
    def forward(self, x):
        return x.sum() * self.n

class Scales(Counts):
    def forward(self, x):
        return x.sum() * self.scale

def fast(function, **how):
    return torch.compile(function, backend=backend, **how)

def counting(**how):
    model = Counts()
    model_fast = fast(model, **how)
    def train(step):
        model.n += 1
        model_fast(torch.ones(2))
    return train

def scaling():
    model = Scales()
    model_fast = fast(model)
    def train(step):
        model.scale = step / 7
        model_fast(torch.ones(2))
    return train

def annealing():
    dropout = torch.nn.Dropout()
    model_fast = fast(torch.nn.Sequential(dropout))
    def train(step):
        dropout.p = step / 100
        model_fast(torch.ones(2))
    return train

def passing():
    scaled = fast(lambda x, n: x.sum() * n)
    return lambda step: scaled(torch.ones(2), step)

def listing():
    summed = fast(lambda parts: sum(part.sum() for part in parts))
    return lambda step: summed([torch.ones(2)] * (step + 1))

ways = {"an int of the module": counting, "with dynamic=True": lambda: counting(dynamic=True),
        "a Dropout's p": annealing, "a list's length": listing, "a float of the module": scaling, "an argument": passing}
counts = {}
for name, make in ways.items():
    torch._dynamo.reset()
    compiled.clear(), runs.clear()
    train = make()
    for step in range(30):
        train(step)
    counts[name] = len(compiled), len(runs)
print("torch", torch.__version__, "(compilations, steps that ran compiled) of 30 steps:", counts)
assert list(counts.values()) == [(8, 8)] * 4 + [(2, 30)] * 2
PY
"$folder/env/bin/python" -W ignore program.py 2> /dev/null
