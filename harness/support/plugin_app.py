"""The plugin's routes over a log directory, called as TensorBoard would call them."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tensorboard_plugin.plugin import GpuUtilizationPlugin


class PluginApp:
    """The plugin beside runs, by default one for each folder of the log directory.

    Args:
        spec: of `--logdir_spec`.
        paths: name of a run -> its folder.
        names: of the runs, where they are neither these nor the folders.
    """

    def __init__(self, logdir, spec="", paths=None, names=None):
        def list_runs(*_, **__):
            named = paths if names is None else names
            if named is None:
                named = sorted(path.name for path in Path(logdir).iterdir() if path.is_dir() or path.is_symlink())
            return [SimpleNamespace(run_name=name) for name in named]

        self.plugin = GpuUtilizationPlugin(
            base_plugin.TBContext(
                logdir=str(logdir),
                data_provider=SimpleNamespace(list_runs=list_runs),
                flags=SimpleNamespace(logdir_spec=spec),
                multiplexer=SimpleNamespace(RunPaths=lambda: paths),
            )
        )
        self.routes = self.plugin.get_plugin_apps()

    def ask(self, address, method="GET", headers=None):
        """Return the whole reply for a route and its query."""
        route = address.partition("?")[0]
        known = route if route in self.routes else "/static/*"
        return Client(self.routes[known]).open(address, method=method, headers=headers)

    def get(self, route, **query):
        """Return the status and the body."""
        text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        reply = self.ask(f"{route}?{text}")
        body = reply.get_data()
        return reply.status_code, gzip.decompress(body) if reply.headers.get("Content-Encoding") == "gzip" else body

    def json(self, route, **query):
        """Return what the body says."""
        return json.loads(self.get(route, **query)[1])

    def tile(self, id, **change):
        asked = {"axis": "step", "level": 0, "first": 0, "count": 64, "lanes": "steps", **change}
        return self.get("/tiles", id=id, **asked)
