"""Credentials appear in no output, file, event or error: commands run with known ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import run, run_alone
from tests.conftest import python_sources
from tests.storage.fault_proxy import PASSING, Schedule, fault_proxy
from tests.storage.servers import Bucket

from packline.storage.clients import obstore
from packline.testing import make_store

KEY, SECRET, TOKEN = (
    "AKIAHIDDENKEY0000001",
    "hiddenSecret/of+the+environment/0002",
    "hiddenToken0000000000003",
)
IN_PROFILE, IN_URI, IN_QUERY = "hiddenSecret/of+the+profile/00000004", "hiddenPassword5", "hiddenSignature6"
HIDDEN = (KEY, SECRET, TOKEN, IN_PROFILE, IN_URI, IN_QUERY)


@pytest.fixture
def home(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder beside the profile; the environment has secrets and a faulty S3."""
    (tmp_path / "aws").mkdir()
    (tmp_path / "aws/credentials").write_text(
        f"[hidden]\naws_access_key_id = {KEY}\naws_secret_access_key = {IN_PROFILE}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws/credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    for name in ("XDG_CACHE_HOME", "PACKLINE_SCRATCH", "TMPDIR"):
        (tmp_path / "work" / name).mkdir(parents=True)
        monkeypatch.setenv(name, str(tmp_path / "work" / name))
    faults = [fault for fault in PASSING if fault not in ("slow", "conflict")]
    plain = Schedule(1, 0.15, faults)

    def choose(method: str, path: str, number: int) -> str | None:
        """HEAD has no body to repeat anything in."""
        if "/denied" in path and method != "HEAD":
            return "denied"
        return plain.choose(method, path, number, False, 0)

    with fault_proxy(bucket.endpoint, Schedule()) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.schedule.at = choose
        yield tmp_path / "work"


def stored(bucket: Bucket) -> Iterator[tuple[str, bytes]]:
    """Bytes and metadata of all objects of a bucket."""
    from obstore.store import S3Store

    store = S3Store(bucket.name, endpoint=bucket.endpoint, client_options={"allow_http": True})
    for page in obstore().list(store):
        for meta in page:
            found = obstore().get(store, meta["path"])
            yield meta["path"], bytes(found.bytes()) + repr(found.attributes).encode()


SIGNED = [
    f"ftp://me:{IN_URI}@127.0.0.1:9/x.jsonl",
    f"sftp://me:{IN_URI}@127.0.0.1:9/x.jsonl",
    f"https://me:{IN_URI}@127.0.0.1:9/x.jsonl",
    f"https://{IN_URI}@127.0.0.1:9/x.jsonl",
    f"http://127.0.0.1:9/x.jsonl?page=2&access_token={IN_QUERY}",
    f"https://127.0.0.1:9/x.jsonl?X-Goog-Signature={IN_QUERY}",
    f"http://127.0.0.1:9/x.jsonl?sig={IN_QUERY}",
    f"hf://datasets/org/name/x.jsonl?token={IN_QUERY}",
    f"hf://me:{IN_URI}@datasets/org/name",
    f"s3://me:{IN_URI}@bucket/x.jsonl",
    f"zip://x.jsonl::ftp://me:{IN_URI}@127.0.0.1:9/x.zip",
]


@pytest.mark.parametrize("uri", SIGNED)
def test_inputs_with_credentials_are_refused_before_anything_is_listed(
    uri: str, tokenizer_json: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "build.toml").write_text(
        f"tokenizer = '{tokenizer_json}'\n[[sources]]\ninputs = ['lines.jsonl']\n"
        f"[[sources]]\ninputs = ['{uri}']\n"
    )
    build = ["--tokenizer", str(tokenizer_json), "--out", "store"]
    for words in (
        ["build", "lines.jsonl", uri, *build],
        ["build", "build.toml", "--out", "store"],
        ["init", uri],
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode and "which the manifest would publish" in done.stderr, done.stderr
        assert IN_URI not in done.stdout + done.stderr and IN_QUERY not in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.toml", "lines.jsonl"]


@pytest.mark.parametrize("uri", [SIGNED[0], SIGNED[4], *SIGNED[8::2]])
def test_no_error_repeats_the_credentials_of_an_address(
    uri: str, tokenizer_json: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "store", [[5, 2, 900], [4]])
    (tmp_path / "lines.jsonl").write_text('{"text": "a"}\n')
    named = ["--tokenizer", str(tokenizer_json)]
    for words in (
        ["build", "lines.jsonl", "--tokenizer", uri, "--out", "new"],
        ["build", "lines.jsonl", *named, "--out", uri],
        ["build", "lines.jsonl", *named, "--out", "new", "--reuse", uri],
        ["info", "store", "--seq-len", "4", "--exclude", uri],
        ["info", "store", "--seq-len", "4", "--unique", uri],
        ["verify", "store", "--against", uri],
        ["tokenizer", "check", uri],
        ["evals", uri],
        ["push", "store", uri],
        ["pull", uri, "new"],
        ["no-such-command", uri],
    ):
        done = run(*words, cwd=tmp_path)
        assert done.returncode, words
        assert IN_URI not in done.stdout + done.stderr and IN_QUERY not in done.stdout + done.stderr, words
        assert "should not happen" not in done.stderr


def test_a_server_that_cannot_be_reached_is_a_plain_error(tokenizer_json: Path, tmp_path: Path) -> None:
    for words in (["build", "ftp://127.0.0.1:9/x"], ["build", "ftp://127.0.0.1:9/*.jsonl"]):
        done = run(*words, "--tokenizer", tokenizer_json, "--out", "store", cwd=tmp_path)
        assert done.returncode == 1 and f"cannot read {words[1]}: Connection refused" in done.stderr


@pytest.mark.slow
def test_no_secret_is_ever_written(
    home: Path, bucket: Bucket, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(home / "store", [[5, 2, 900], [4]])
    (home / "text").mkdir()
    for path, text in python_sources(60_000):
        (home / "text" / path.name.replace(".py", ".txt")).write_text(text)
    build = ["--tokenizer", str(tokenizer_json), "--workers", "1"]
    at = bucket.place
    nowhere = f"https://me:{IN_URI}@127.0.0.1:9/x.txt?sig={IN_QUERY}"
    signed = "was given with credentials, a query or a fragment"
    denied = "access refused: status 403"
    # Expected error of each command; empty: success.
    commands: list[tuple[str, list[str]]] = [
        ("", ["push", "store", at("copy")]),
        ("", ["pull", at("copy"), "back", "--verify", "--json"]),
        ("", ["build", "text", *build, "--out", at("built"), "--json"]),
        ("", ["status", at("built")]),
        ("", ["info", at("copy")]),
        ("", ["verify", at("copy")]),
        (denied, ["push", "store", at("denied")]),
        (denied, ["push", "store", at("denied"), "--debug"]),
        (denied, ["push", "store", at("denied"), "--json"]),
        (denied, ["build", "text", *build, "--out", at("denied")]),
        ("no such bucket", ["push", "store", f"s3://none-{bucket.name}/x", "--debug"]),
        (signed, ["push", "store", f"s3://me:{IN_URI}@{bucket.name}/x"]),
        (signed, ["pull", f"az://c/x?sig={IN_QUERY}", "new", "--json"]),
        (signed, ["pull", f"{at('copy')}?sig={IN_QUERY}", "new", "--debug"]),
        (signed, ["status", f"{at('built')}?sig={IN_QUERY}"]),
        (signed, ["info", f"{at('copy')}?sig={IN_QUERY}", "--debug"]),
        ("in a local folder", ["verify", f"{at('copy')}?sig={IN_QUERY}", "--from", "nanogpt"]),
        (signed, ["build", "text", *build, "--out", f"s3://me:{IN_URI}@{bucket.name}/x"]),
        ("is a store of packline", ["build", at("copy"), *build, "--out", "wrong"]),
        ("the address has a user name", ["build", nowhere, *build, "--out", "wrong"]),
    ]
    printed: dict[str, str] = {}
    for reason, words in commands:
        done = (run if reason == signed else run_alone)(*words, cwd=home)
        text = done.stdout + done.stderr
        assert (done.returncode == 0) == (not reason) and reason in text, (words, text)
        printed[" ".join(words)] = text
    assert any("SignatureDoesNotMatch" in text for text in printed.values())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    for profile, code in (("hidden", 0), ("absent", 1)):
        done = run_alone("push", "store", at(f"by-{profile}"), cwd=home, AWS_PROFILE=profile)
        assert done.returncode == code, done.stderr
        printed[profile] = done.stdout + done.stderr
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")

    files = {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    objects = dict(stored(bucket))
    assert len(files) > 20 and len(objects) > 20
    texts = {name: text.encode() for name, text in printed.items()} | files | objects
    found = [(name, secret) for name, text in texts.items() for secret in HIDDEN if secret.encode() in text]
    assert found == []
