"""Object stores for tests, on loopback: moto as S3, Azurite, rclone as a store that ignores conditions.

`bucket` sets the environment of this process and of its children: endpoint, credentials, region. A server is
a process of its own, one for a session of tests; each test has a bucket of its own. No obstore here,
so a test may still fork.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlsplit

import pytest

KEY, SECRET = "AKIAPACKLINETEST0000", "secret-of-the-tests-000000000000"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_NAMES = (f"bucket-{os.getpid()}-{number}" for number in itertools.count())


@dataclass(frozen=True)
class Bucket:
    endpoint: str
    name: str

    def place(self, key: str = "") -> str:
        return f"s3://{self.name}/{key}" if key else f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which obstore, boto3 and packline reach the server."""
        return ENVIRONMENT | {"AWS_ENDPOINT_URL": self.endpoint}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, log: Path, seconds: float = 60.0) -> Iterator[None]:
    """Run a server from the time at which it answers on its port until the end of the block."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "the server has ended"
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


MOTO = """
import threading
from moto.s3.responses import S3Response
from moto.server import main

put, one_at_a_time = S3Response.put_object, threading.Lock()

def put_object(self):
    with one_at_a_time:
        return put(self)

S3Response.put_object = put_object
main()
"""
"""An S3 server whose conditional puts are atomic, as those of S3 are: moto checks, and then stores."""


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("moto", reason="the S3 server moto is not installed")
    port = free_port()
    command = [sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, tmp_path_factory.mktemp("moto") / "log"):
        yield f"http://127.0.0.1:{port}"


def make_bucket(endpoint: str) -> Bucket:
    name = next(_NAMES)
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    return Bucket(endpoint, name)


def clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its children use no credentials of the user."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


def set_environment(monkeypatch: pytest.MonkeyPatch, bucket: Bucket, home: Path) -> None:
    """Let this process and its children use a bucket, and no credentials of the user."""
    clear_environment(monkeypatch)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "no-config"))


@pytest.fixture
def bucket(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    """A new bucket, with the environment set."""
    bucket = make_bucket(moto)
    set_environment(monkeypatch, bucket, tmp_path)
    return bucket


@pytest.fixture
def lying_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of a store that accepts conditions and ignores them."""
    program = Path(sys.executable).with_name("rclone")
    if not program.exists():
        pytest.skip("rclone is not installed")
    port = free_port()
    (tmp_path / "served" / "bucket").mkdir(parents=True)
    command = [str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    with serving([*command, str(tmp_path / "served")], port, tmp_path / "rclone.log"):
        bucket = Bucket(f"http://127.0.0.1:{port}", "bucket")
        set_environment(monkeypatch, bucket, tmp_path)
        yield bucket


AZURITE = Path(__file__).parent / "azurite/node_modules/azurite/dist/src/blob/main.js"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that Azurite documents for its one account."""


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URI of a new container of Azurite, with the environment set."""
    node = shutil.which("node")
    if node is None or not AZURITE.exists():
        pytest.skip("Azurite is not installed: make azurite")
    port = free_port()
    command = [node, str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    with serving(command, port, tmp_path / "azurite.log"):
        clear_environment(monkeypatch)
        endpoint = f"http://127.0.0.1:{port}/devstoreaccount1"
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        _make_container(f"{endpoint}/packline")
        yield "az://packline"


def _make_container(address: str) -> None:
    path = urlsplit(address).path
    date = formatdate(usegmt=True)
    signed = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:2021-12-02\n"
    signed += f"/devstoreaccount1{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-12-02",
        "Authorization": f"SharedKey devstoreaccount1:{base64.b64encode(digest).decode()}",
    }
    request = urllib.request.Request(f"{address}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=30).close()
