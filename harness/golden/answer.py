"""Run commands of whichever version is on the path, and keep what they print."""

import contextlib
import io
import json
import sys
from pathlib import Path

from gpu_util_callback.cli import main


def answer(command: list[str]) -> object:
    """The JSON that a command prints, or its exit status and its first line of complaint."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(command)
        except SystemExit as ended:
            status = ended.code
    if not out.getvalue():
        return {"status": status, "stderr": err.getvalue().partition("\n")[0]}
    return json.loads(out.getvalue())


asked, answered = map(Path, sys.argv[1:])
result = {name: answer(command) for name, command in json.loads(asked.read_text()).items()}
answered.write_text(json.dumps(result))
