"""Find the browser the tests drive: $CHROMIUM, else Chromium or Chrome on the PATH.

`python harness/support/chromium.py --install` installs Debian's package when there is none and we are
root; else it says in one line what to install.
"""

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Nothing that reaches for the network, and no sandbox where tests run as root in a container.
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    *(["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
]


def find() -> str | None:
    """Path of the browser, or None."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def main() -> int:
    if find():
        return 0
    apt = shutil.which("apt-get")
    if "--install" in sys.argv and apt and os.geteuid() == 0:
        print("Installing Debian's chromium for the browser tests …", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("update", "install"):
            words = ["--no-install-recommends", "chromium"] if command == "install" else []
            subprocess.run([apt, command, "-y", "-qq", *words], env=environment, check=False)
        if find():
            return 0
    print(
        "The browser tests need Chromium or Chrome: install it (Debian: apt-get install chromium) "
        "or set CHROMIUM=/path/to/it.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
