"""The recipe for CI in `demo/` does what it says, with real fits."""

from pathlib import Path

from fork_server import python
from programs import ran

DEMO = Path(__file__).resolve().parents[2] / "demo" / "regression_gate.py"


def test_the_recipe_passes_the_same_program_and_fails_the_slower_one(tmp_path):
    done = ran(*python("keras"), DEMO, "--steps", "220", "--log-dir", tmp_path / "gate")
    assert "slower: its step is" in done.stdout and "at most 5 % allowed" in done.stdout
    assert "<failure" in (tmp_path / "gate" / "slower" / "gate.xml").read_text()
