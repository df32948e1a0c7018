"""A bucket of a real S3 protocol server on loopback."""

from __future__ import annotations

import logging
import os
import time

from packages import need


def empty_bucket(monkeypatch):
    """The body of a fixture: yields the URL of a bucket; the environment leads other processes there, too."""
    need("s3fs", "moto", "flask")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "made")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "up")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{os.getpid()}-{time.monotonic_ns()}"  # the server's buckets outlive it
    s3fs.S3FileSystem().mkdir(name)
    yield f"s3://{name}/logs"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
