"""The plugin's routes over a log directory, called as TensorBoard would call them."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tensorboard_plugin.plugin import GpuUtilizationPlugin


def plugin_over(logdir, names, spec="", paths=None) -> GpuUtilizationPlugin:
    """Return the plugin beside runs of these names.

    Args:
        names: returns them.
        spec: of `--logdir_spec`.
        paths: name of a run -> its folder.
    """
    runs = SimpleNamespace(list_runs=lambda *_, **__: [SimpleNamespace(run_name=name) for name in names()])
    return GpuUtilizationPlugin(
        base_plugin.TBContext(
            logdir=str(logdir),
            data_provider=runs,
            flags=SimpleNamespace(logdir_spec=spec),
            multiplexer=SimpleNamespace(RunPaths=lambda: paths),
        )
    )


def clients(logdir, names=(), **more) -> dict[str, Client]:
    """Return a client of each route of the plugin beside runs of these names; `more`: of `plugin_over`."""
    routes = plugin_over(logdir, lambda: names, **more).get_plugin_apps()
    return {route: Client(app) for route, app in routes.items()}


class PluginApp:
    """The plugin beside runs, by default one for each folder of the log directory.

    Args:
        spec: of `--logdir_spec`.
        paths: name of a run -> its folder.
    """

    def __init__(self, logdir, spec="", paths=None):
        def names():
            return paths or sorted(path.name for path in Path(logdir).iterdir() if path.is_dir() or path.is_symlink())

        self.plugin = plugin_over(logdir, names, spec, paths)
        self.routes = self.plugin.get_plugin_apps()

    def ask(self, address, method="GET"):
        """Return the whole reply for a route and its query."""
        route = address.partition("?")[0]
        known = route if route in self.routes else "/static/*"
        return Client(self.routes[known]).open(address, method=method)

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
