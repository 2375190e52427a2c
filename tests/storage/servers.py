"""Object stores for tests, on loopback: moto as S3, rclone as a store that ignores conditions.

A plugin of pytest (named in conftest.py), so every test may ask for its fixtures:

    def test_it(bucket: Bucket) -> None:
        packline.storage.places.open_storage(bucket.place("store"))

`bucket` sets the environment of this process and of its children: endpoint, credentials, region. A server is
a process of its own, one for a session of tests; each test has a bucket of its own. No obstore here,
so a test may still fork.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    """A bucket of a server.

    Attributes:
        endpoint: address of the server.
        name: name of the bucket.
    """

    endpoint: str
    name: str

    def place(self, key: str = "") -> str:
        """URI of a key."""
        return f"s3://{self.name}/{key}" if key else f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which obstore, boto3 and packline reach the server."""
        return ENVIRONMENT | {"AWS_ENDPOINT_URL": self.endpoint}


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(process: subprocess.Popen[bytes], port: int, seconds: float = 60.0) -> None:
    """Wait until a server answers on its port."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a server."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an S3 server with conditions."""
    pytest.importorskip("moto", reason="the S3 server moto is not installed")
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    command = [
        sys.executable,
        "-c",
        "from moto.server import main; main()",
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def make_bucket(endpoint: str) -> Bucket:
    """A new bucket of a server that checks no signatures."""
    name = next(_NAMES)
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    return Bucket(endpoint, name)


def set_environment(monkeypatch: pytest.MonkeyPatch, bucket: Bucket, home: Path) -> None:
    """Let this process and its children use a bucket, and no credentials of the user."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
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
    with open(tmp_path / "rclone.log", "wb") as output:
        process = subprocess.Popen([*command, str(tmp_path / "served")], stdout=output, stderr=output)
    try:
        wait_for(process, port)
        bucket = Bucket(f"http://127.0.0.1:{port}", "bucket")
        set_environment(monkeypatch, bucket, tmp_path)
        yield bucket
    finally:
        end(process)
