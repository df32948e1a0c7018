"""The names and units of everything a recording holds: one place for writer, readers and rules.

Units are in the names: `_ns` nanoseconds, `_bytes`, `_pct` percent (0-100), `_mw` milliwatts,
`_mhz`, `_c` degrees Celsius. Times named `*_start_ns`/`*_end_ns`/`time_ns` are nanoseconds since
the epoch on the recording's own monotonic clock (see `clock.py`). NaN (text: "") means absent.
"""

PLUGIN_NAME = "gpu_utilization"
SUMMARY_FILE = "summary.json"  # beside the manifest of a recording that is over
FORMAT_MAJOR = 2
FORMAT_MINOR = 0

# The value of an integer column where nothing is known (floats: NaN, text: "").
ABSENT_INT = -1

# The disjoint categories of a traced step's time on a GPU.
CATEGORIES = (
    "kernel",
    "copy_h2d",
    "copy_d2h",
    "copy_d2d",
    "collective",
    "idle_input",
    "idle_launch",
    "idle_sync",
    "idle_host",
    "other",
)
IDLE_CATEGORIES = tuple(category for category in CATEGORIES if category.startswith("idle_"))

# Column types: "int", "float", "text" (dictionary-coded).
TABLES: dict[str, dict[str, str]] = {
    # One row per delivered batch, in order. The row's time line is
    #   start_ns .. start_ns + duration_ns
    # and its parts are disjoint: input_wait + compile + body + gpu_wait + callbacks <= duration.
    "steps": {
        "step": "int",  # the fit's own batch count from 0, over all epochs
        "start_ns": "int",
        "duration_ns": "int",  # wait included; ends where the next step of the epoch starts
        "input_get_ns": "int",  # time inside get_next, waiting or not
        "input_wait_ns": "int",  # delay of this step by get_next
        "compile_ns": "int",  # tracing and XLA compilation inside this step
        "body_ns": "int",  # train function minus wait and compilation
        "gpu_wait_ns": "int",  # host waiting for the device after the train function returned
        "callbacks_ns": "int",  # batch-level hooks of all callbacks but ours
        "batches": "int",  # batches in the execution this row belongs to (steps_per_execution)
        "estimated": "int",  # 1: the parts of this row are estimates (several batches, one call)
        "shape_id": "int",  # id of the input shape, -1 = shapes are static or unknown
    },
    # Everything on the training thread that is not a step, and the containers around steps.
    "phases": {
        # fit, epoch, validation, callback, checkpoint, compilation, input_setup, profiler_window,
        # gap, between_fits or stopped (the whole process was)
        "kind": "text",
        "name": "text",  # e.g. "epoch 3", "ModelCheckpoint.on_epoch_end"
        "start_ns": "int",
        "end_ns": "int",
        "step": "int",  # steps delivered when it began (an epoch: when it ended)
        "account": "text",  # one of ACCOUNTS, or "" if its time is counted elsewhere
        "self_ns": "int",  # time counted for `account`; for "" the time really spent
        "count": "int",  # number of calls in this row (batch hooks are summed per flush)
    },
    # Validation steps: the same clocks as for training.
    "validation_steps": {
        "step": "int",  # training steps delivered when this validation ran
        "start_ns": "int",
        "duration_ns": "int",
        "input_wait_ns": "int",
    },
    # The input pipeline's stages, read from time to time; one row per stage and reading.
    "pipeline": {
        "time_ns": "int",
        "step": "int",
        "which": "text",  # "train" or "validation"
        "node": "int",  # id of the stage in this reading's tree
        "parent": "int",  # id of its consumer, -1 at the root
        "stage": "text",  # the user's name for it: "map(decode)", "batch", "prefetch"
        "op": "text",  # TensorFlow's name: "ParallelMapV2"
        "elements": "int",  # produced since the last reading
        "processing_ns": "int",  # own work since the last reading, all threads together
        "parallelism": "float",
        "buffered": "float",
        "buffer_limit": "float",
        "flags": "text",  # comma-separated: "py_function", "random", "fixed_parallelism", ...
    },
    # Profiler windows: one row per traced step and GPU (index -1: the host alone).
    "traced_steps": {
        "step": "int",
        "gpu": "int",
        "start_ns": "int",
        "duration_ns": "int",
        **{f"{category}_ns": "int" for category in CATEGORIES},
        "kernel_busy_ns": "int",  # union of kernels, regardless of other work at the time
        "any_busy_ns": "int",
        "kernels": "int",
        "window": "int",
        "batches": "int",  # under the step's one marker: more than 1 with steps_per_execution
    },
    # Kernels of the profiler windows, summed per window, GPU and name. Index -1: ops on the host,
    # the busiest of a window in which no GPU was traced.
    "kernels": {
        "window": "int",
        "gpu": "int",
        "name": "text",
        "op": "text",
        "count": "int",
        "total_ns": "int",
        "min_ns": "int",
        "max_ns": "int",
        "occupancy_pct": "float",
        "registers": "float",
        "blocks": "float",
        "threads_per_block": "float",
        "tensor_core": "text",  # "yes", "no", "unknown"
    },
    # The kernels (index -1: ops on the host) with most time in each traced step, by name; `kernels`
    # has the details of a name.
    "step_kernels": {
        "window": "int",
        "step": "int",
        "gpu": "int",
        "name": "text",
        "count": "int",
        "total_ns": "int",
        "max_ns": "int",
    },
}

# The disjoint parts of a step, in their order -> the account that their time belongs to.
STEP_PARTS = {
    "input_wait_ns": "input_wait",
    "compile_ns": "compile",
    "body_ns": "step",
    "gpu_wait_ns": "step",
    "callbacks_ns": "callbacks",
}

# Kinds of phases in which nothing trains.
PAUSES = FIT_GAP, STOPPED = "between_fits", "stopped"

# The host account of a run: exact, disjoint, summing to wall_s together with `other`.
ACCOUNTS = ("input_wait", "step", "compile", "validation", "callbacks", "other")

# Samples live in separate groups: a group is a 2-D array (samples x columns) with one time per
# sample. Columns are open; their meanings are those of the lanes' titles. The groups are
#   gpu<i>              read at each tick; `event_reasons` is NVML's bit mask of why clocks are low
#   gpu<i>/utilization  the driver's own samples, or polled values, each at the end of its window
#   gpu<i>/gpm          shares of the GPU over the interval that ends there (Hopper and newer)
#   gpu<i>/xid          one row per critical error
#   gpu<i>/lost         1 = gone, 0 = back
#   host                the machine and this process

# Bytes per second and direction of a PCIe lane, by the `pcie_generation` of a GPU's samples: the line rate
# less its encoding, 8b/10b, then 128b/130b, then PAM4 FLITs.
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

# The columns of `steps` that are drawn and folded into the top, in nanoseconds per step.
STEP_SERIES = ("duration_ns", "input_get_ns", "input_wait_ns", "compile_ns", "body_ns", "gpu_wait_ns", "callbacks_ns")

# Floats are kept as whole multiples of a thousandth, or of another part of their unit by the ending
# of the column's name: finer than any of the instruments.
PARTS_PER_UNIT = {"_bytes_per_s": 1 / 1024, "_per_s": 100, "_mw": 1, "_c": 100}
