"""Modules of a framework's package are imported by name, late: each name must be one of a module."""

import re
from pathlib import Path

from gpu_util_callback import backends

HOME = Path(backends.__file__).parent


def test_each_part_that_is_named_exists():
    named = set()
    for path in HOME.parent.rglob("*.py"):
        named |= set(re.findall(r'framework_module\((?:"(\w+)"|[\w.]+), "(\w+)"\)', path.read_text()))
    assert len(named) > 4
    for framework, part in sorted(named):
        homes = [framework] if framework else ["tensorflow", "jax", "torch"]
        assert [home for home in homes if not (HOME / home / f"{part}.py").exists()] == [], part
