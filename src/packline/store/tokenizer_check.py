"""Check the tokenizer kept with a store against the manifest.

    tokenizer/tokenizer.json ── load ──> fingerprint, vocabulary, EOD, BOS, dtype == the manifest's

Does not compare the store's tokens with it: `shard_check` does, and `rereading` for a sample.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from packline.encoders.special_tokens import resolve_boundary
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import PacklineError
from packline.ragged import dtype_for
from packline.store.manifest import MANIFEST, TOKENIZER, Manifest
from packline.store.report import Findings
from packline.store.shard_check import check_file


def check_tokenizer(folder: Path, manifest: Manifest, findings: Findings) -> Tokenizer | None:
    """Load the tokenizer kept with a store and check it; None if it cannot be read."""
    entry = manifest.tokenizer
    whole = [check_file(folder, file, findings) for file in manifest.tokenizer_files]
    name = f"{TOKENIZER}/tokenizer.json"
    if name not in [file.name for file in manifest.tokenizer_files]:
        findings.add(MANIFEST, "tokenizer_files", name, "not among them")
        return None
    if not all(whole):
        return None
    try:
        tokenizer = load_tokenizer(str(folder / name))
        boundary = resolve_boundary(tokenizer, entry.eod, entry.bos)
    except PacklineError as error:
        findings.add(name, str(error))
        return None
    findings.compare(name, "fingerprint", entry.fingerprint, tokenizer.fingerprint)
    findings.compare(name, "vocabulary", entry.vocab_size, tokenizer.vocab_size)
    findings.compare(name, f"id of EOD {entry.eod}", entry.eod_id, boundary.eod_id)
    findings.compare(name, f"id of BOS {entry.bos}", entry.bos_id, boundary.bos_id)
    findings.compare(MANIFEST, "dtype", dtype_for(tokenizer.vocab_size).name, manifest.dtype)
    for role, asked, token, number in (
        ("eod", manifest.recipe.eod, entry.eod, entry.eod_id),
        ("bos", manifest.recipe.bos, entry.bos, entry.bos_id),
    ):
        if asked is not None and asked not in (token, number):
            findings.add(MANIFEST, f"{role} of the recipe and of the tokenizer", asked, token)
    return tokenizer


def control_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of special tokens that no text can become.

    A model without an id for every byte encodes unknown text as <unk>, so that one is left out.
    """
    contents = msgspec.json.decode(tokenizer.json)
    model, control = contents["model"], dict(tokenizer.special_tokens)
    unknown = model.get("unk_token")
    if model.get("type") == "Unigram" and model.get("unk_id") is not None:
        unknown = model["vocab"][model["unk_id"]][0]
    if unknown is not None and not _knows_all_bytes(model):
        control.pop(unknown, None)
    return tuple(sorted(set(control.values())))


def _knows_all_bytes(model: dict[str, object]) -> bool:
    """True if a BPE has tokens for single bytes: as `<0x0A>`, or by the usual letters for bytes."""
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or "merges" not in model:
        return False
    if model.get("byte_fallback") is True:
        return True
    from tokenizers import pre_tokenizers

    return all(letter in vocab for letter in pre_tokenizers.ByteLevel.alphabet())
