"""Redaction of secrets, always, and of names of people and machines, with `redact=True`.

`without_secrets` takes user-info and signatures out of every text that is stored, printed or
served. A `Redactor` also takes out this machine's and this user's names.
"""

import getpass
import hashlib
import logging
import os
import re
import secrets
import socket
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

# --- secrets --------------------------------------------------------------------------------------

# The longest user-info or value that is looked for: it keeps the search linear in the text.
_LONGEST = 4096
# User-info may hold any character if it is not encoded, "/" too; digits after ":" are a port.
_USER_INFO = re.compile(
    rf"://((?:[^\s/?#]{{0,{_LONGEST}}}@)|[^\s/?#:@\[]+:(?!\d+(?:[/?#\s]|$))[^\s@]{{0,{_LONGEST}}}@)"
)
# In these, what stands before "@" names the container.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
_NAME = re.compile(r"[\w.-]*")
_LONGEST_NAME = 64
# A value in quotes, which may be escaped, as in JSON, which stays JSON: there, a quote that is not
# escaped ends the text, and "," or ":" follows it.
_QUOTED = re.compile(
    rf"""'(?:[^'"\\\n]|\\.){{0,{_LONGEST}}}'"""
    rf"""|'(?:[^'"\\\n]|\\.|"(?!\s*[,:\]}}])){{0,{_LONGEST}}}'(?=[\s,;)\]}}&]|$)"""
    rf"""|"(?:[^"\\\n]|\\.){{0,{_LONGEST}}}"(?=[\s,;)\]}}&'>]|$)"""
    rf"""|\\"(?:[^"\\\n]|\\[^"]){{0,{_LONGEST}}}\\\""""
)
# A value without, or with a quote that nothing ends.
_PLAIN = re.compile(r"""(?:'|"(?=\w))?(?:[^\s"'<>\\]|\\(?!["']))*""")
_PARAMETER = re.compile(r"""(?:[^\s&"'<>\\]|\\(?!["']))*""")
_WORD = re.compile(r"""(?:(?:Bearer|Basic|Digest) )?[^\s"'<>\\,;)\]}\-][^\s"'<>\\,;)\]}]*""")
# What stands between a name and its value: "=", ": ", in Python and JSON `": "` and `", "`.
_SIGN = re.compile(r"""(?:\\?["'])? ?[=:] ?""")
_EQUALS = re.compile("=")
_OPTION = re.compile(rf"""(?<![\w-])--?([A-Za-z][\w.-]{{0,{_LONGEST_NAME}}})(?:\\?["'],\s*| +)""")
# Parameters of signed URLs: of AWS, Google, Azure, Alibaba and Tencent, of CloudFront, and keys.
_SIGNED = re.compile(
    r"x-(?:amz|goog|oss|cos|ms)-.*|(?:aws|oss)?accesskeyid|googleaccessid|signature|policy"
    r"|key-pair-id|expires|sig|s[vepr]|st|spr|srt|ss|sdd|sip|sktid|skoid|sk[tesv]|q-.*|key|code",
    re.IGNORECASE,
)
# Names of secrets wherever a value is assigned to them.
_SECRET = re.compile(
    r".*passw(?:or)?d|(?:.*[_.-])?(?:pwd|secret|(?:api|access|secret|private|account)[_-]?key"
    r"|(?:auth|access|session|security|refresh)?_?token|sas|credentials?|authorization)"
    r"|aws_access_key_id",
    re.IGNORECASE,
)
# One of these is in each of their names: a search for them is quick.
_SECRET_WORDS = (
    "passw",
    "pwd",
    "secret",
    "token",
    "sas",
    "credential",
    "authorization",
    *(f"{what}{sign}key" for what in ("api", "access", "private", "account") for sign in "_-"),
    "apikey",
    "accesskey",
    "privatekey",
    "accountkey",
)
# A plain word after one of these names in a sentence is no value: "no credentials: file", "Credentials: file not
# found".
_SENTENCE = re.compile(
    r"\b(?i:no|not|any|without|find|locate|load|missing|invalid|expired) (?:\w+ )?"
    r"(?i:credentials?|token|authorization): (?=[a-z]{1,15}(?:[\s,.;)]|$))"
    r"|\A(?i:credentials?): (?=[a-z]{1,15} [a-z]{1,15}(?:[\s,.;)]|$))"
)


def _option_pattern(clients: str, options: str) -> re.Pattern[str]:
    """Return the pattern of a command up to the value of an option, also as a list of its words."""
    return re.compile(
        rf"""(?<![\w.-])(?:{clients})(?=["'\s])[^\n;|&]{{0,256}}?(?<![\w-])(?:{options})(?:\\?["'],\s*|\ *)"""
    )


# Clients with an option whose value is a password, or has one, with or without a blank before it.
_CLIENTS = {
    "-p": _option_pattern(
        r"mysql(?:dump|admin|import|show|check|pump|sh)?|mariadb(?:-\w+)?|sshpass"
        r"|mongo(?:sh|dump|restore|export|import)?",
        "-p",
    ),
    "-u": _option_pattern("curl", "-u|--user[= ]|--proxy-user[= ]"),
    "-a": _option_pattern("redis-cli", "-a"),
}
_BEARER = re.compile(r"\b(Bearer +)[\w.~+/=-]{8,}")
_HIDDEN = "***"


def without_secrets(text: str) -> str:
    """Return a text without the user-info and signatures of its URLs, and without passwords, tokens and keys."""
    while "://" in text:
        shorter = _USER_INFO.sub(_without_user_info, text)  # "@" may be in a password, too
        if shorter == text:
            break
        text = shorter
    lowered = text.lower()
    has_secret_word = any(word in lowered for word in _SECRET_WORDS)
    if has_secret_word or "=" in text:
        text = _hide_values(text, _SIGN if has_secret_word else _EQUALS)
    if has_secret_word and "-" in text:
        options = (option.end() for option in _OPTION.finditer(text) if _SECRET.fullmatch(option[1]))
        text = _with_ranges_hidden(text, options)  # `--password`, in a command or in a list of its words
    for option, client in _CLIENTS.items():
        if option in text:
            text = _with_ranges_hidden(text, (command.end() for command in client.finditer(text)))
    return _BEARER.sub(rf"\1{_HIDDEN}", text) if "Bearer " in text else text


def _without_user_info(match: re.Match[str]) -> str:
    scheme = re.split(r"[^a-z]", match.string[max(0, match.start() - 8) : match.start()])[-1]
    return match[0] if scheme in _CONTAINERS and ":" not in match[1] else "://"


def _hide_values(text: str, signs: re.Pattern[str]) -> str:
    """Return a text without the values that stand behind names of secrets: `token=…`, `"password": …`, `--key …`.

    Args:
        signs: what separates a name from its value.
    """
    parts, copied = [], 0
    sentences = {sentence.end() for sentence in _SENTENCE.finditer(text)}
    for sign in signs.finditer(text):
        start, end = sign.span()
        if start < copied:  # within a value that is hidden
            continue
        before = text[max(0, start - _LONGEST_NAME) : start][::-1]
        length = _NAME.match(before).end()  # type: ignore[union-attr]  # it matches any text
        name, is_parameter = before[:length][::-1], before[length : length + 1] in ("?", "&", ";")
        if sign[0] == "=" and is_parameter and _SIGNED.fullmatch(name):  # of a signed URL
            hidden = _value_range(text, end, _PARAMETER)
        elif end in sentences or not _SECRET.fullmatch(name):  # no secret's name, or a sentence about one
            continue
        elif sign[0] == "=":
            hidden = _value_range(text, end, _PARAMETER if is_parameter else _PLAIN)
        else:
            hidden = _range_in_quotes(text, end, bare=sign[0][0] in " =:")
        if hidden[0] < hidden[1] and not text.startswith(_HIDDEN, hidden[0]):
            parts += [text[copied : hidden[0]], _HIDDEN]
            copied = hidden[1]
    return "".join(parts) + text[copied:]


def _with_ranges_hidden(text: str, values: Iterable[int]) -> str:
    """Return a text with the values hidden that begin at these places, ascending."""
    parts, copied = [], 0
    for value in values:
        start, end = _range_in_quotes(text, value, bare=True)
        if copied <= start < end:
            parts += [text[copied:start], _HIDDEN]
            copied = end
    return "".join(parts) + text[copied:]


def _value_range(text: str, at: int, plain: re.Pattern[str]) -> tuple[int, int]:
    """Return where a value that begins at `at` begins and ends, with its quotes."""
    return (_QUOTED.match(text, at) or plain.match(text, at)).span()  # type: ignore[union-attr]


def _range_in_quotes(text: str, at: int, bare: bool) -> tuple[int, int]:
    """Return (start, end) of the value at `at`, without its quotes; an empty range if there is none.

    Args:
        bare: it may have no quotes.
    """
    if (quoted := _QUOTED.match(text, at)) is not None:
        quotes = 2 if quoted[0][0] == "\\" else 1
        return quoted.start() + quotes, quoted.end() - quotes
    word = _WORD.match(text, at) if bare else None
    return (at, at) if word is None else word.span()


def cleaned(value: object) -> Any:
    """Return a JSON value with all its texts and names `without_secrets`."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {without_secrets(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return value


def shortened(text: str, most: int = 300) -> str:
    """Return the beginning of a text in one line; half a URL would not show its user-info."""
    return " ".join(without_secrets(text).split())[:most]


class CleanStream:
    """A text stream that takes secrets out of each text written to it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(without_secrets(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# --- names ----------------------------------------------------------------------------------------

# Facts that are left out: they identify people, processes or machines.
_DROPPED = {
    "pid",
    "pid_namespace",
    "boot_id",
    "process_started",
    "process",
    "processes",
    "user",
    "variables",
    "control_group",
    "group_inode",
}
# Accounts that many machines have: their names identify no person, and are common words.
_SHARED_ACCOUNTS = (
    "admin administrator app build data debian docker ec2-user gpu jax jovyan keras lab ml model nobody notebook "
    "python ray root runner runneradmin server tensorflow test torch train ubuntu user users vagrant worker"
)
_SHARED = frozenset(_SHARED_ACCOUNTS.split())
# "ValueError: any text": the name of an error, and what it says, up to "…" where it was cut before.
_ERROR = re.compile(
    r"((?<![\w.])(?:[\w.]*(?:[Ee]rror|Exception|Interrupt|Exit|Warning|Timeout)\w*|error \w+): )"
    r"([^…]+…(?!\S)|.+)",
    re.DOTALL,
)
_FIRST_WORDS = 5


def hashed_host(host: str) -> str:
    """Return a stable pseudonym of a host: the same host is still recognised as the same."""
    digest = hashlib.sha256(b"gpu-util-callback host\0" + host.encode()).hexdigest()
    return f"host-{digest[:10]}"


def hashed_script(name: str | None) -> str | None:
    """Return a stable pseudonym of a script's name, None of none; a pseudonym is left as it is."""
    if not name:
        return None
    if re.fullmatch(r"script-[0-9a-f]{10}", name):
        return name
    digest = hashlib.sha256(b"gpu-util-callback script\0" + name.encode()).hexdigest()
    return f"script-{digest[:10]}"


def _user_names() -> set[str]:
    """Return the names of this process's user; none of an account that many machines have."""
    names = {os.environ.get(name, "") for name in ("LOGNAME", "USER", "USERNAME")}
    try:
        names.add(getpass.getuser())
    except (ImportError, KeyError, OSError):  # a container's user without an entry
        pass
    return {name for name in names if len(name) > 1 and name.lower() not in _SHARED}


def _folders() -> dict[str, str]:
    """Return the home folder and the working folder, as paths with and without links, each with its replacement."""
    folders: dict[str, str] = {}
    for stand_in, places in (
        ("~", [os.path.expanduser("~"), os.environ.get("HOME", "")]),  # noqa: PTH111
        (".", [_working_folder(), os.environ.get("PWD", "")]),
    ):
        for place in places:
            for path in {place, os.path.realpath(place)} if place else ():
                if Path(path).is_absolute() and len(Path(path).parts) > 1:
                    folders.setdefault(path, stand_in)
    return folders


def _working_folder() -> str:
    """Return the working folder; "" if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def _first_words(text: str) -> str:
    """Return the first words of an error's text, up to one that may be a name, path or value."""
    words = text.split()
    plain = []
    for word in words[:_FIRST_WORDS]:
        if re.search(r"[/\\@='\"…]", word):
            break
        plain.append(word)
    return " ".join(plain if len(plain) == len(words) else [*plain, "…"])


def error_text(error: BaseException) -> str:
    """Return an error's type and text in one line, by which a `Redactor` recognises it."""
    name, text = type(error).__name__, " ".join(str(error).split())
    type_and_text = f"{name}: {text}"
    return type_and_text if _ERROR.match(f"{name}: …") else f"error {type_and_text}"


class Redactor:
    """Rewrites facts and texts before they reach a file; the names are this machine's.

    Args:
        hosts: this machine's names.
    """

    def __init__(self, hosts: Iterable[str]):
        names = {host: hashed_host(host) for host in hosts if len(host) > 1 and host != "localhost"}
        self._names = dict.fromkeys(_user_names(), "user") | names
        self._folders = _folders()
        self._name_pattern = _pattern_of_names(self._names, r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
        self._folder_pattern = _pattern_of_names(self._folders, r"(?<![\w.~-])", r"(?![\w-])")
        self.token = secrets.token_hex(3)  # takes the place of a pid in a name
        # Most facts are the same at each flush.
        self.text = lru_cache(4096)(self._redacted_text)

    def _redacted_text(self, text: str) -> str:
        """Return a text without secrets and names, and with the first words of an error only."""
        text = without_secrets(text)
        if self._folder_pattern is not None:
            text = self._folder_pattern.sub(lambda match: self._folders[match.group()], text)
        text = _ERROR.sub(lambda match: match[1] + _first_words(match[2]), text)
        if self._name_pattern is not None:
            text = self._name_pattern.sub(lambda match: self._names[match.group()], text)
        return text

    def value(self, value: object) -> Any:
        """Return a JSON value with names replaced and processes left out, at any depth."""
        if isinstance(value, dict):
            return {
                self.text(str(key)): self._redacted_fact(str(key).lower(), item)
                for key, item in value.items()
                if str(key).lower() not in _DROPPED
            }
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def _redacted_fact(self, key: str, value: object) -> object:
        """Return a fact of a manifest without names: a host's as a hash, an error's without its end."""
        if key == "host" and isinstance(value, str) and value:
            return hashed_host(value)
        if key == "message" and isinstance(value, str):  # an error's
            return self.text(_first_words(value))
        return self.value(value)


def _pattern_of_names(names: Iterable[str], before: str, after: str) -> re.Pattern[str] | None:
    """Return a pattern of any of these names between two others; None without names."""
    # Longest first, so that a full name goes before its short form inside it.
    longest_first = sorted(names, key=len, reverse=True)
    if not longest_first:
        return None
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, longest_first))}){after}")


def redacted_file(data: bytes) -> bytes:
    """Return a binary file with the names of folders and user overwritten, at the same length.

    Names of one to three letters stay: numbers may have the same bytes.
    """
    names = [os.fsencode(name) for name in (*_folders(), *_user_names())]
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 3:
            pattern = rb"(?<![A-Za-z0-9])" + re.escape(name) + rb"(?![A-Za-z0-9])"
            data = re.sub(pattern, b"_" * len(name), data)
    return data


# --- messages -------------------------------------------------------------------------------------

_redactor: Redactor | None = None  # of what this process prints, once `redact=True` was asked for


def redact_messages() -> None:
    """Keep names out of all that this process prints and logs from now on."""
    global _redactor
    _redactor = _redactor or Redactor({socket.gethostname()})


def printable(text: str) -> str:
    """Return a text as it may be printed."""
    return without_secrets(text) if _redactor is None else _redactor.text(text)


def _redact_record(record: logging.LogRecord) -> bool:
    """Rewrite a log record, traceback included, before any handler has it."""
    try:
        record.args = tuple(map(_redacted_argument, record.args or ()))
        record.msg, record.args = without_secrets(record.getMessage()), ()
    except Exception as error:  # an object whose text cannot be made
        record.msg, record.args = f"a message without a text ({type(error).__name__})", ()
    if record.exc_info and record.exc_info[0] is not None:
        lines = traceback.format_exception(*record.exc_info)
        record.exc_text = printable("".join(lines).rstrip())
        record.exc_info = None
    return True


def _redacted_argument(value: object) -> object:
    """Return an argument of a log record without secrets; numbers stay as they are."""
    if isinstance(value, BaseException) and _redactor is not None:
        return printable(_first_words(str(value)))
    return value if isinstance(value, (int, float)) else printable(str(value))


def clear_logs() -> None:
    """Install the filter of our logger; twice has no effect."""
    logging.getLogger("gpu_util_callback").addFilter(_redact_record)
