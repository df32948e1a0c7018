"""Proof on a real GPU: trainings with a known fault, and whether its cause is found.

`demo/gpu_evidence.py` is the command. `scenarios` says what is wrong in each training and which
causes must be found; `workloads` builds them for the GPU at hand; `child` trains one of them in a
process of its own; `findings` and `verdicts` read its recording; `costs` measures what recording
costs; `standin` and `standin_trace` play a GPU where there is none.
"""
