"""Names files of other tools, so that whoever gives one learns what it is, and what can be read in its place."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

READABLE = (
    "Not read here: gpu-util reads traces of torch.profiler, jax.profiler, the TensorFlow Profiler "
    "(*.pt.trace.json, *.xplane.pb) and Nsight Systems (*.sqlite)"
)
_SAMPLES = "samples of Python's or another CPU stack, without the GPU's work"
_SPEEDSCOPE = f"a profile in speedscope's format: {_SAMPLES}"
_OF_AMD = "torch.profiler and jax.profiler record AMD's GPUs as well, and the steps around kernels"
ROCPD = f"a rocpd database, as rocprofv3 writes it. {_OF_AMD}"
_INSTRUMENTS = "a recording of Apple's Instruments, as of torch.mps.profiler: its signposts and Metal's GPU work"
_PERFETTO = "a Perfetto trace (protobuf), as rocprofv3 and Android write them"
# Of a file whose messages no profiler of a training wrote.
PROTOBUF = "a protobuf of another kind, such as a Perfetto trace, a graph, an HLO module or a table of the Profile tab"

_BEGINNINGS = (
    (rb"\x80[\x02-\x05]", "a pickle, such as PyTorch's memory snapshot: not opened, since a pickle can run any code"),
    (rb"PK\x03\x04", "a zip archive: unpack it first, if a trace is in it"),
    (rb"NVR\x00", "a report of Nsight Compute, of single kernels and not of a training's steps"),
    (rb"\x03BOTF2", f"an OTF2 archive, as of rocprofv3 and Score-P. {_OF_AMD}"),
    (rb"PAR1|ARROW1|\xff{4}|\x89HDF", "a table (Parquet, Arrow or HDF5): export the report with nsys export -t sqlite"),
    (rb"PERFILE2|memray|[\{\xfb][0()\xa8\xa9\xe9]", f"a profile of perf, memray or cProfile: {_SAMPLES}"),
    (rb"(?s:<\?xml.{,99}<trace-(toc|query))", f"an export (xctrace) of {_INSTRUMENTS}"),
    (rb"<(\?xml|svg|!DOCTYPE|html)", "a web page or drawing, such as a flame graph: give the trace that it shows"),
    (
        rb'(==\d+== [^\n]*\n)*"?[A-Za-z_ ()%]{2,40}"?,"?[A-Za-z_ ()%]{2,40}"?[,\r\n]',
        "a table in CSV, as of rocprof and nsys stats: give the trace",
    ),
    (
        rb"[^\x00-\x08\n;]{1,500};[^\x00-\x08\n]{0,3500} \d+\r?\n",
        f"stacks as py-spy and perf collapse them: {_SAMPLES}",
    ),
)
_SUFFIXES = {
    ".qdrep": "a report of an older Nsight Systems: export it (nsys export -t sqlite)",
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
    ".prof": "a pprof profile, such as jax.profiler.save_device_memory_profile writes: memory, without times",
}
BUNDLES = {".trace": _INSTRUMENTS, ".gputrace": "a capture of Metal's commands, which Xcode shows"}  # of folders
# Members of a JSON object, all of which must be there, and what has them.
_MEMBERS: tuple[tuple[Collection[str], str], ...] = (
    (("rocprofiler-sdk-tool",), f"rocprofv3's own JSON. {_OF_AMD}"),
    (("shared", "profiles"), _SPEEDSCOPE),
    (("segments", "device_traces"), "PyTorch's memory snapshot: https://pytorch.org/memory_viz shows it"),
    (("schema", "nodes"), "PyTorch's execution trace (ExecutionTraceObserver), which holds no times of the GPU"),
    (("root_frame",), f"pyinstrument's session: {_SAMPLES}"),
    (("session", "frame_tree"), f"pyinstrument's session: {_SAMPLES}"),
    (("Type",), "Nsight Systems' JSON: export it as SQLite instead (nsys export -t sqlite)"),
)

# Categories and names of processes in a Chrome trace: of tools without a GPU's work, and of accelerators.
_TOOLS = (
    (
        r"^/(device|host):",
        "the trace viewer's copy of a JAX or TensorFlow trace: give the *.xplane.pb in its folder, which has more",
    ),
    (r"^fee$|viztracer", "VizTracer's trace: Python functions, without the GPU's work"),
    (r"^task::|^ray$", "Ray's timeline: its tasks, without the GPU's work"),
    (r"^session$", "ONNX Runtime's profile: a model's inference, no training"),
)
_ACCELERATORS = (
    ("an Ascend NPU", re.compile(r"ascend|\bcann\b|\bnpu\b", re.IGNORECASE)),
    ("a Gaudi accelerator", re.compile(r"habana|gaudi|synapse|\bhpu\b", re.IGNORECASE)),
    ("a Neuron device", re.compile(r"neuron(core|device)|\bneuron\b|nrt_", re.IGNORECASE)),
    ("an Apple GPU", re.compile(r"\bmetal\b|\bmps\b", re.IGNORECASE)),
    ("an IPU", re.compile(r"\bipu\b|poplar|popart", re.IGNORECASE)),
    ("a Cambricon MLU", re.compile(r"\bmlu\b|cambricon", re.IGNORECASE)),
)


def by_beginning(path: Path, head: bytes) -> str:
    """Return what a file is by its suffix and first bytes (4 kB are enough), if no trace; "" = not known."""
    if "tfevents" in path.name:
        return "TensorBoard's scalars: `gpu-util report` reads the log directory around it"
    for pattern, tool in _BEGINNINGS:
        if re.match(pattern, head):
            return tool
    return _SUFFIXES.get(path.suffix, "")


def by_members(names: Collection[str], texts: Mapping[str, str]) -> str:
    """Return what a JSON object without trace events is, by its members and those that are texts; never "".

    Args:
        names: of the members.
        texts: name -> value of those that are texts.
    """
    if any("speedscope" in text for text in texts.values()):  # the address of its schema
        return _SPEEDSCOPE
    for needed, tool in _MEMBERS:
        if all(name in names for name in needed):
            return tool
    # Of any of these accelerators.
    neuron = next((accelerator for accelerator, sign in _ACCELERATORS if any(map(sign.search, names))), "")
    if neuron:
        return f"a profile of {neuron}, whose work is not read"
    if "traceEvents" in names or not names:
        return "a trace that holds no trace events"
    shown = (" ".join(name.split())[:40] for name in list(names)[:5])  # of a line, whatever the names hold
    return f"JSON of another kind, without trace events (its members: {', '.join(shown)})"


def accelerator(labels: Collection[str]) -> str:
    """Return another maker's accelerator that categories or names of processes show; "" = none."""
    return next((name for name, sign in _ACCELERATORS if any(map(sign.search, labels))), "")


def by_labels(labels: Collection[str]) -> str:
    """Return what a Chrome trace is by its categories and its processes' names, if no training's; "" = not known."""
    return next((tool for sign, tool in _TOOLS if any(re.search(sign, label, re.IGNORECASE) for label in labels)), "")
