#!/usr/bin/env bash
# torch 2.13.0: a loop of 30 steps that calls torch.compile in each step, of a function or module that is new there.
# Guess: each is compiled, as by tf.function and jax.jit. Seen: what is compiled is kept with the function's code, so a
# lambda or a new module of one shape is compiled once, a lambda over a new Python number twice; only functions of new
# code (exec) are compiled each time, and no limit of recompilations ends that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
cd "$folder"
"$folder/env/bin/python" -W ignore - <<'PY'
import torch

compiled = []

def backend(graph, inputs):
    compiled.append(graph)
    return graph.forward

x, model = torch.randn(4, 8), torch.nn.Linear(8, 1)

def by_exec(step):
    made = {}
    exec("def scaled(x): return (x * 2).sum()", made)
    return made["scaled"]

ways = {
    "a lambda": lambda step: lambda x: model(x).sum(),
    "a lambda over a number": lambda step: lambda x: (model(x) * (step + 0.5)).sum(),
    "a new module": lambda step: torch.nn.Linear(8, 1),
    "code of its own": by_exec,
}
counts = {}
for name, make in ways.items():
    torch._dynamo.reset()
    compiled.clear()
    for step in range(30):
        torch.compile(make(step), backend=backend)(x)
    counts[name] = len(compiled)
print("torch", torch.__version__, counts)
assert list(counts.values()) == [1, 2, 1, 30]
PY
