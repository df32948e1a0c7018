"""Entry point that TensorBoard imports at start: too small to break it.

TensorBoard loads entry points unguarded, so an import error here would stop TensorBoard itself;
errors raised by `load` are only logged. Everything but the base class is therefore imported there.
"""

from tensorboard.plugins import base_plugin

__all__ = ["Loader"]

PLUGIN_NAME = "gpu_utilization"


class Loader(base_plugin.TBLoader):
    """Loader of the plugin."""

    def fix_flags(self, flags):
        """Keep every marker event: by default TensorBoard samples a plugin's data down."""
        flags.samples_per_plugin.setdefault(PLUGIN_NAME, 0)

    def load(self, context):
        """Return the plugin, or None where this TensorBoard has no data provider."""
        from tensorboard_plugin.plugin import GpuUtilizationPlugin

        if context.data_provider is None:
            return None
        return GpuUtilizationPlugin(context)
