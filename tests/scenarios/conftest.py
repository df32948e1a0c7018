"""Scenarios: runs made of stated parts, so that the truth is known."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
