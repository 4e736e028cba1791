"""An S3 on this machine, as moto's server plays it: for the tests and the benchmark of runs at a
URL.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

NEEDED = ("moto", "flask", "flask_cors", "s3fs")
START_S = 240.0  # its imports take a second of a core, which a busy machine may not have


def missing() -> str:
    """The packages that are not here."""
    return ", ".join(name for name in NEEDED if find_spec(name) is None)


@contextmanager
def s3(bucket: str) -> Iterator[str]:
    """Start a server with an empty bucket -> its URL.
    The environment names the server meanwhile.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in said}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        os.environ |= said
        try:
            until = time.monotonic() + START_S
            while not _answers(port):
                if time.monotonic() > until or server.poll() is not None:
                    raise OSError(
                        f"expected moto's server to answer within {START_S:.0f} s, got no answer"
                    )
                time.sleep(0.05)
            import fsspec

            # those of an earlier server, which ask it at its port
            fsspec.get_filesystem_class("s3").clear_instance_cache()
            fsspec.filesystem("s3").mkdir(bucket)
            yield f"s3://{bucket}"
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            server.kill()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
