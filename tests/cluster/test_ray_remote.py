"""Ray with an object store: text with a node lost, conversations, an export; the bytes of one machine."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.raylets import CHAT, run_python, start_raylets
from tests.jobs.builds import build, digests, set_sizes_everywhere, start_build, stored
from tests.laws.reference import write_corpus
from tests.storage.servers import Bucket

import packline
from packline.jobs.work import SCRATCH
from packline.storage.places import open_storage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
EXPORT = """
packline.export(given["store"], to="megatron", out=given["out"], link="copy", on="ray", workers=1)
"""


def test_text_and_conversations(
    bucket: Bucket,
    tmp_path: Path,
    documents: list[str],
    tokenizer_json: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    set_sizes_everywhere(monkeypatch, tmp_path / "site", 100_000)
    third = len(documents) // 3
    write_corpus(
        tmp_path / "in", [("jsonl", documents[:third], True), ("jsonl.zst", documents[third:], True)]
    )
    plain: dict[str, Any] = {"engine": "tokenizers", "val_fraction": 0.1}
    build(tmp_path / "alone", tmp_path / "in", tokenizer_json, **plain)
    place = bucket.place("store")
    with start_raylets() as raylets:  # its nodes have the credentials of this environment
        lost, _ = raylets.add(), raylets.add()
        process = start_build(
            place,  # type: ignore[arg-type]
            tmp_path / "in",
            tokenizer_json,
            raylets.environment,
            on="ray",
            **plain,
        )
        end = time.monotonic() + 120
        while process.poll() is None and not open_storage(place).list("receipts"):
            assert time.monotonic() < end
            time.sleep(0.1)
        raylets.kill(lost)
        text = process.communicate(timeout=200)[0]
        assert process.returncode == 0, text
        assert stored(place) == digests(tmp_path / "alone")

        chats = tmp_path / "chats.jsonl"
        lines = [msgspec.json.encode({"prompt": "say it", "response": text}) for text in documents]
        chats.write_bytes(b"\n".join(lines))
        outs = {"local": str(tmp_path / "chat"), "ray": bucket.place("chat")}
        for on, out in outs.items():
            given = {"inputs": str(chats), "tokenizer": str(tokenizer_json), "out": out, "on": on}
            run_python(CHAT, given, raylets.environment)
        assert stored(outs["ray"]) == digests(tmp_path / "chat")

        packline.export(tmp_path / "alone", to="megatron", out=tmp_path / "data", link="copy")
        given = {"store": place, "out": bucket.place("out")}  # from the bucket into the bucket
        run_python(EXPORT, given, raylets.environment)
        assert stored(given["out"]) == digests(tmp_path / "data")
