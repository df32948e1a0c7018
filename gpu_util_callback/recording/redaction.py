"""`redact=True`: no host name, no pid and no other user's process leaves the machine."""

import hashlib
import re
import secrets
from collections.abc import Iterable
from typing import Any

__all__ = ["Redactor", "hashed_host", "hashed_script"]

_HOSTS = {"host", "hostname", "node", "nodename"}
# Left out everywhere: they identify people, processes or machines.
_DROPPED = {
    "pid", "ppid", "pids", "pid_namespace", "boot_id", "process_started", "processes", "process",
    "other_processes", "user", "users", "username", "uid", "command", "cmdline", "argv", "ip",
    "address", "addresses", "variables", "kept", "control_group", "group_inode",
}  # fmt: skip


def hashed_host(host: str) -> str:
    """Return a stable pseudonym of a host: the same host is still recognised as the same."""
    digest = hashlib.sha256(b"gpu-util-callback host\0" + host.encode()).hexdigest()
    return f"host-{digest[:10]}"


def hashed_script(name: str) -> str:
    """Return a stable pseudonym of a script's name; a pseudonym is left as it is."""
    if re.fullmatch(r"script-[0-9a-f]{10}", name):
        return name
    digest = hashlib.sha256(b"gpu-util-callback script\0" + name.encode()).hexdigest()
    return f"script-{digest[:10]}"


class Redactor:
    """Rewrites facts and texts before they reach a file; the names are this machine's."""

    def __init__(self, hosts: Iterable[str]):
        # Longest first, so that a full name goes before its short form inside it.
        names = {host for host in hosts if len(host) > 1 and host != "localhost"}
        longest_first = sorted(names, key=len, reverse=True)
        self._hosts = (
            re.compile(
                r"(?<![A-Za-z0-9])(?:"
                + "|".join(map(re.escape, longest_first))
                + r")(?![A-Za-z0-9])"
            )
            if names
            else None
        )
        self.token = secrets.token_hex(3)  # takes the place of a pid in a name

    def text(self, text: str) -> str:
        """Return `text` with this machine's names replaced."""
        if self._hosts is None:
            return text
        return self._hosts.sub(lambda found: hashed_host(found.group()), text)

    def value(self, value: Any) -> Any:
        """Return a JSON value with names replaced and processes left out, at any depth."""
        if isinstance(value, dict):
            return {
                self.text(str(key)): (
                    hashed_host(item)
                    if str(key).lower() in _HOSTS and isinstance(item, str) and item
                    else self.value(item)
                )
                for key, item in value.items()
                if str(key).lower() not in _DROPPED
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value
