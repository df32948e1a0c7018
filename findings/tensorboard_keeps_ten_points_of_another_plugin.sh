#!/usr/bin/env bash
# tensorboard 2.21.0: a plugin of one's own reads its scalars, of 3,000 steps, by the data provider that it is given.
# Guess: 1,000 points, as TensorBoard keeps of scalars, in both of its readers. Seen: 10 with `--load_fast=false`, where the plugin
# has to be named in `--samples_per_plugin` to have more, and 1,000 with `--load_fast=true`, the data server.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check tensorboard==2.21.0 "setuptools<82"
cd "$folder"
"$folder/env/bin/python" -W ignore - 2> errors <<'PY' || { cat errors; exit 1; }
import time
import tensorboard
from tensorboard import context, program
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from tensorboard.data.provider import RunTagFilter
from tensorboard.plugins.base_plugin import TBPlugin
from tensorboard.plugins.core.core_plugin import CorePluginLoader
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

class Mine(TBPlugin):
    plugin_name = "mine"
    def __init__(self, given):
        super().__init__(given)
        providers.append(given.data_provider)
    def get_plugin_apps(self):
        return {}
    def is_active(self):
        return True

metadata = SummaryMetadata(plugin_data={"plugin_name": "mine"}, data_class=DATA_CLASS_SCALAR)
writer = EventFileWriter("logs/run")
for step in range(3000):
    value = Summary.Value(tag="load", metadata=metadata, tensor=make_tensor_proto(float(step), "float32"))
    writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
writer.close()
providers, seen = [], []
for load_fast in ("false", "true"):
    board = program.TensorBoard(plugins=[CorePluginLoader(), Mine])
    board.configure(argv=[None, "--logdir", "logs", "--port", "0", "--load_fast", load_fast])
    board.launch()
    for _ in range(60):
        read = providers[-1].read_scalars(
            context.RequestContext(), experiment_id="", plugin_name="mine", downsample=10_000,
            run_tag_filter=RunTagFilter(["run"], ["load"]),
        )
        points = read.get("run", {}).get("load", [])
        if points and points[-1].step == 2999:
            break
        time.sleep(1)
    seen.append(len(points))
print(tensorboard.__version__, "points with --load_fast=false and true:", *seen)
assert seen == [10, 1000]
PY
