"""The demo's modules are scripts: they find each other by path. Traces are built as elsewhere."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [path for path in (str(TESTS.parent / "demo"), str(TESTS / "traces")) if path not in sys.path]
