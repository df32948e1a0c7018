"""Proof on a real GPU: trainings with a known fault, and whether its cause is found.

`demo/gpu_evidence.py` is the command, and what it imports imports no framework: `scenarios` says
what is wrong in each training and which causes must be found; `process` runs a `job` in a process
of its own; `verdicts`, `instruments`, `table` and `costs` judge and show what came back; `machine`
says where that was. `standin` plays the driver of a GPU where there is none.

In the processes: `child` trains one scenario out of `workloads`, built for the `device` at hand,
and `findings` reads its recording; `costs_child` measures what recording costs; `keep` and `trim`
make small copies; `standin_trace` plays the framework's side of a GPU.
"""
