"""No password, signature or token leaves the machine; with `redact=True` no name of a user either.

The secrets stand in the URL of the log directory, in variables of the environment, in arguments of
the program and in the messages of errors. Each source fails; then every byte that was written,
printed, logged and served is searched.
"""

import ftplib
import json
import logging
import re
import sys
import time
import traceback
import zipfile
from io import BytesIO
from typing import ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from plugin_app import PluginApp

from gpu_util_callback import GpuUtilMonitor, read_recordings, redaction
from gpu_util_callback.backends.adapters import LoopAdapter
from gpu_util_callback.cli import main
from gpu_util_callback.errors import UnusableInput
from gpu_util_callback.profiling import session
from gpu_util_callback.recorder import intake, messages, outputs, recorder
from gpu_util_callback.recorder.memory_watch import describe_error
from gpu_util_callback.recorder.model_work import ModelWork
from gpu_util_callback.recording import event_files, problems
from gpu_util_callback.recording.discovery import expanded
from gpu_util_callback.recording.storage import storage_for
from gpu_util_callback.recording.writer import RecordingWriter
from gpu_util_callback.redaction import Redactor, cleaned, error_text, without_secrets

URL = "leaky://alizarin:PASSW0RD@host/logs?X-Amz-Signature=SIGNED&sig=SHARED"
SECRETS = ("PASSW0RD", "SIGNED", "SHARED", "HUNTER2", "TOKEN99")
ERROR = f"403 for url {URL} with password=HUNTER2 as alizarin from /home/alizarin/x"


class LeakyFileSystem(MemoryFileSystem):
    """A store whose errors hold the whole URL; `failing` names the files that cannot be written."""

    protocol = "leaky"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    failing = ""

    @classmethod
    def _strip_protocol(cls, path):
        path = re.sub(r"^leaky://([^/]*@)?", "", path).partition("?")[0]
        return super()._strip_protocol(path)

    def pipe_file(self, path, value, **options):
        if re.search(self.failing or "^$", path):
            raise RuntimeError(ERROR)
        super().pipe_file(path, value, **options)


@pytest.fixture
def surroundings(monkeypatch, tmp_path, register_store):
    """A user with a home, a working folder inside it, and secrets wherever they may stand."""
    home = tmp_path / "alizarin"
    (home / "job").mkdir(parents=True)
    for name, value in {
        "HOME": str(home),
        "USER": "alizarin",
        "LOGNAME": "alizarin",
        "DB_PASSWORD": "HUNTER2",
        "TF_GPU_ALLOCATOR": "--token=TOKEN99",
        "PWD": str(home / "job"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home / "job")
    monkeypatch.setattr(sys, "argv", ["train.py", "--token=TOKEN99", URL])
    monkeypatch.setattr(redaction, "_redactor", None)
    monkeypatch.setattr(messages, "_warned", set())
    register_store(LeakyFileSystem)
    monkeypatch.setattr(LeakyFileSystem, "failing", "")
    yield home
    LeakyFileSystem.store.clear()
    LeakyFileSystem.pseudo_dirs[:] = [""]


def leak(*args, **options):
    raise RuntimeError(ERROR)


BROKEN = {
    "sources": [
        (LoopAdapter, "facts"),
        (recorder, "job_facts"),
        (LoopAdapter, "pipeline"),
        (ModelWork, "add"),
        (event_files.ScalarWriter, "points"),
        (event_files, "next_step_offset"),
        (intake.GpuSamples, "facts"),
    ],
    "opening": [(RecordingWriter, "_make_folder")],
    "manifest": [],  # of the store's own accord
    "segment": [],
}


def everything_said(logdir, folder, capfd, caplog):
    """All texts that were written, printed and logged; and those of report, total and the tab."""
    texts = [json.dumps(sorted(LeakyFileSystem.store))]
    for file in LeakyFileSystem.store.values():
        data = file.getvalue()
        texts.append(data.decode("latin1"))
        if zipfile.is_zipfile(BytesIO(data)):
            archive = zipfile.ZipFile(BytesIO(data))
            texts += [archive.read(name).decode("latin1") for name in archive.namelist()]
    page = folder.parent / "page.html"
    for command in (
        ["report", logdir, "--json", "--html", str(page)],
        ["report", logdir],
        ["total", logdir],
        ["total", logdir, "--json"],
        ["export", logdir, "--perfetto", "-"],
        ["report", f"{logdir.replace('/logs', '/nowhere')}"],
    ):
        main(command)
    if page.exists():
        texts.append(page.read_text())
    app = PluginApp(logdir, names=["."])
    listed = app.json("/runs")["recordings"]
    replies = [app.get("/runs"), app.get("/total"), app.get("/recording", id=URL)]
    for one in listed:
        for route in ("/recording", "/job", "/export.csv", "/export.html"):
            replies.append(app.get(route, id=one["id"], table="phases"))
    texts += [body.decode() for _, body in replies]
    for one in read_recordings(logdir) if listed else ():
        texts += [str(vars(problem)) for problem in one.problems] + [one._repr_html_()]
    printed = capfd.readouterr()
    texts += [printed.out, printed.err, caplog.text]
    return texts


@pytest.mark.parametrize("redact", [False, True], ids=["plain", "redacted"])
@pytest.mark.parametrize("broken", BROKEN)
def test_no_byte_holds_a_secret(broken, redact, surroundings, monkeypatch, capfd, caplog):
    caplog.set_level(logging.DEBUG, "gpu_util_callback")
    for owner, name in BROKEN[broken]:
        monkeypatch.setattr(owner, name, leak)
    monkeypatch.setattr(recorder, "FLUSH_S", 0.02)
    monkeypatch.setattr(outputs, "RETRIES_S", (0.02,))
    with GpuUtilMonitor(URL, redact=redact) as monitor:
        recorded = monitor._recorder
        for number in monitor.batches(range(40)):
            if not BROKEN[broken]:
                LeakyFileSystem.failing = broken if 10 < number < 30 else ""
            monitor._recorder._outputs._next_flush = 0.0
            monitor._recorder._stop.wait(0.01)
    texts = everything_said(URL, surroundings, capfd, caplog)
    texts += [json.dumps(recorded.summary()), recorded.summary()._repr_html_()]
    assert sum(text.count("RuntimeError: 403 for url") for text in texts) >= len(BROKEN[broken])
    assert not any("verdict is off" in text for text in texts)
    words = [*SECRETS, *(["alizarin", str(surroundings)] if redact else [])]
    for text in texts:
        for word in words:
            at = text.find(word)
            assert at < 0, text[max(0, at - 200) : at + 100]
    assert bool(LeakyFileSystem.store) == (broken != "opening")


def test_a_redacted_summary_names_no_folder(surroundings):
    """Trackers log it; its card shows the same."""
    with GpuUtilMonitor(surroundings / "job/logs", redact=True, report=False) as monitor:
        recorded = monitor._recorder
        for _ in monitor.batches(range(20)):
            time.sleep(0.01)
    summary = recorded.summary()
    assert summary["recording"].startswith("./logs/plugins/") and summary["steps"] == 20
    card = summary._repr_html_()
    assert "<pre" in card and "read_recordings" in card, "its recording was opened"
    assert "alizarin" not in json.dumps(summary) + card


def test_an_error_behind_an_error_holds_no_secret(surroundings, monkeypatch):
    """Where nobody catches it, Python prints all of them."""
    for name in ("ls", "glob", "cat_file", "info", "__init__"):
        with monkeypatch.context() as patched:
            patched.setattr(LeakyFileSystem, name, leak)
            LeakyFileSystem.clear_instance_cache()
            for read in (read_recordings, lambda url: expanded([f"{url}*"]), storage_for):
                try:
                    read(URL)
                except (UnusableInput, OSError):
                    said = traceback.format_exc()
                    assert not any(secret in said for secret in SECRETS), said
    with pytest.raises(UnusableInput, match="403 for url"), monkeypatch.context() as patched:
        patched.setattr(LeakyFileSystem, "ls", leak)
        read_recordings(URL)


def test_half_a_url_shows_no_password():
    """Long texts are cut where their URL may stand."""
    text = f"out of memory {'x' * 270} ftp://alizarin:PASSW0RD{'x' * 3000}@host"
    for cut in (problems.reason, session.one_line, lambda error: describe_error(error)["message"]):
        assert "PASSW0RD" not in cut(MemoryError(text))


SIGNED = {
    "ftp://alice:pw@host/logs": "ftp://host/logs",
    'cannot write to ftp://al.ice:p@s:w/r?d"#x@host/a (no)': "cannot write to ftp://host/a (no)",
    "https://h/b?sv=2020&x=1&sig=a%2Bb": "https://h/b?sv=***&x=1&sig=***",
    "URL('https://h/?X-Goog-Signature=a')": "URL('https://h/?X-Goog-Signature=***')",
    "URL('https://h/?X-Amz-Credential=b')": "URL('https://h/?X-Amz-Credential=***')",
    "retries with url: /o?Signature=a&AWSAccessKeyId=b": "retries with url: /o?Signature=***&AWSAccessKeyId=***",
    "simplecache::ftp://alice:pw@h/y": "simplecache::ftp://h/y",
    "--token=t DB_PASSWORD='a' Authorization: Bearer abcdefgh": "--token=*** DB_PASSWORD=*** Authorization: ***",
    """--password "a b" --token t PASSWORD='a "b" c', x""": """--password "***" --token *** PASSWORD=***, x""",
    "['train.py', '--password', 'a b', '-x']": "['train.py', '--password', '***', '-x']",
    "environ({'DB_PASSWORD': 'a b', 'X': '1'})": "environ({'DB_PASSWORD': '***', 'X': '1'})",
    "(password: abc) PASSWORD='a b": "(password: ***) PASSWORD=*** b",
    "mysql -u root -pa db; cp -pr x": "mysql -u root -p*** db; cp -pr x",
    "/usr/bin/mysqldump -h h -p 'a b'": "/usr/bin/mysqldump -h h -p '***'",
    "curl -sS -u alice:hunter2 host/x": "curl -sS -u *** host/x",
    "curl --user alice:hunter2 host": "curl --user *** host",
    "curl --proxy-user=alice:hunter2 host": "curl --proxy-user=*** host",
    "redis-cli -h db -a hunter2 PING": "redis-cli -h db -a *** PING",
    "['sshpass', '-pa', 'ssh']": "['sshpass', '-p***', 'ssh']",
    "['mongo', '-p', 'a b']": "['mongo', '-p', '***']",
    "PGPASSWORD=a psql": "PGPASSWORD=*** psql",
    "invalid token: a1b2": "invalid token: ***",
    "password: file": "password: ***",
    "sqlcmd PWD=a&b;x api_key = 'a b'": "sqlcmd PWD=*** api_key = '***'",
}
PLAIN = [
    "https://host:80/a@b?x=1",
    "http://[::1]:6006/a@b",
    "s3://bucket/v@1",
    "mail me@host",
    "abfs://container@account.dfs.core.windows.net/logs",
    "max_tokens=5, se=3, sig=1",
    "use --token-file x --password --verbose",
    "token_ids: [1, 2]",
    "Password:\n x",
    "key: value",
    "no credentials: file",
    "Credentials: file not found",
    "curl -sS host -o x; sort -u names",
    "redis-cli PING; ls -a home",
    "Unable to locate credentials: check the profile",
    "No SAS token: a",
    "mysql -p -u root",
    "mkdir -p x; mysql",
    "mysql-loader.py -p 8080",
    "ssh -p 22 mysql",
    "@tf.function(input_signature=[spec])",
    "tf.data.Dataset.from_generator(f, output_signature=s)",
]


def test_secrets_of_a_url_are_hidden_and_nothing_else():
    for text, expected in SIGNED.items():
        assert without_secrets(text) == expected
        assert without_secrets(expected) == expected
    for text in PLAIN:
        assert without_secrets(text) == text
    held = {
        "a": 'token="x y"',
        "b": "token=",
        "c": 'ftp://a:p"w@host',
        "d": "token='x",
        "e": "y' z",
        "f": ["--token", "x y"],
        "g": '--token "x y"',
        "token": "x y",
    }
    for options in ({}, {"indent": 1}, {"separators": (",", ":")}):
        assert json.loads(without_secrets(json.dumps(held, **options))) == {
            "a": "token=***",
            "b": "token=",
            "c": "ftp://host",
            "d": "token=***",
            "e": "y' z",
            "f": ["--token", "***"],
            "g": '--token "***"',
            "token": "***",
        }
    nested = {"ftp://a:b@c/": [{"x": ("ftp://a:b@c/", 1, None)}]}
    assert cleaned(nested) == {"ftp://c/": [{"x": ["ftp://c/", 1, None]}]}
    assert str(UnusableInput("no ftp://a:b@c/")) == "no ftp://c/"


def test_hiding_secrets_takes_time_in_proportion():
    texts = ["mysql -u", "no token: ", "://a:b", "=", "://", "password=", "--password ", 'password: "', "password='\\"]
    began = time.process_time()
    without_secrets("".join(text * 8_000 for text in texts))
    for text in texts:
        without_secrets(text * 8_000)
    assert time.process_time() - began < 2


def test_of_an_error_type_and_first_words_stay(surroundings):
    redactor = Redactor([])
    said = f"{surroundings}/job/logs and {surroundings}/x: {error_text(OSError('cannot, as 42'))}"
    assert redactor.text(said) == "./logs and ~/x: OSError: cannot, as 42"
    assert redactor.text("CustomError: one two three four five six") == ("CustomError: one two three four five …")
    assert redactor.text("a (error error_perm: 530 'x' y)") == "a (error error_perm: 530 …"
    assert redactor.text("ValueError: one two … (give another log_dir)") == (
        "ValueError: one two … (give another log_dir)"
    )
    assert redactor.text("by alizarin, alizarins") == "by user, alizarins"
    assert redactor.value({"memory": {"message": "a b c d e f"}}) == {"memory": {"message": "a b c d e …"}}
    assert redactor.text(error_text(ftplib.error_perm("530 x"))) == "error_perm: 530 x"


def test_a_redacted_profile_names_no_folder(surroundings):
    path = f"{surroundings}/job/train.py".encode()
    data = redaction.redacted_file(b"\x0a\x30" + path + b" alizarin")
    assert len(data) == len(path) + 11 and data.startswith(b"\x0a\x30")
    assert b"alizarin" not in data and data.endswith(b"/train.py ________")


def test_an_error_without_a_text_is_logged(caplog):
    class Wordless(Exception):
        def __str__(self):
            raise MemoryError

    logging.getLogger("gpu_util_callback").warning("%s", Wordless())
    assert "MemoryError" in caplog.text


def test_doctor_prints_no_secret(surroundings, monkeypatch, capsys):
    monkeypatch.setattr("gpu_util_callback.doctor._checks.installed", lambda name: {})
    main(["doctor"])
    printed = capsys.readouterr()
    assert "--token=***" in printed.out
    assert not any(secret in printed.out + printed.err for secret in SECRETS)
