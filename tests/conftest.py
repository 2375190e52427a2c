"""What all tests share: real text, a small real tokenizer, and the way to files beside the project.

Everything here is made from what every machine has (Python's own standard library) and comes out
the same in every process of one Python, so that parallel test workers agree. Costs under two
seconds a worker, and only where a test asks for it.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# No deadline: a busy machine is not a wrong result. In CI the same cases every time, so that a red run means
# that the code changed; at a desk new cases every time, and twice as many.
settings.register_profile("desk", deadline=None)
settings.register_profile(
    "ci", max_examples=50, deadline=None, derandomize=True, database=None, print_blob=True
)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Text on which tokenizers, decoders and JSON writers go wrong. All of it is valid Unicode, none is
# empty and none holds a NUL: those are bad input, and their tests make them.
HARD_TEXTS = (
    " ",
    "\n",
    "\r\n line ends \r\n of three \r kinds \n",
    "\ta\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h",
    "\ufeffa byte order mark is text when it is inside a document",
    "<|endoftext|>",
    "a control token's name <|endoftext|> in the middle of prose <|im_end|></s>",
    "naïve café, and the same decomposed: nai\u0308ve cafe\u0301",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢ much too many marks",
    "👩‍👩‍👧‍👦 👍🏽 🇯🇵 a family, a skin tone, a flag",
    "普通话和方言。日本語の文章です。한국어 문장입니다. 각",
    "العربية من اليمين إلى اليسار، with English inside, עברית",
    "हिन्दी में लिखा हुआ एक वाक्य। ไม่มีช่องว่างระหว่างคำ",
    "𝒜𝓁𝓅𝒽𝒶 \U0001f9ec \U0010fffd \ue000 \ufffd",
    "1234567890 3.14159 1e-9 0xdeadbeef 1,000,000",
    "if (a<b){return \"x\\n\";}\t// 'code' \\u0000 \\\\",
    "x" * 5000,
    " " * 3000,
    "日" * 2000,
    "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=" * 50,
)


@cache
def python_sources(limit_bytes: int) -> tuple[tuple[Path, str], ...]:
    """The standard library's own modules in order of name, up to a volume."""
    found, volume = [], 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text("utf-8")
        volume += len(text)
        if volume > limit_bytes:
            break
        if text:
            found.append((path, text))
    return tuple(found)


SHARED = Path(os.environ.get("PACKLINE_SHARED") or ROOT.parent / "shared")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora and tokenizers beside the project. The test skips where it is absent.

    `PACKLINE_SHARED` names another place.
    """
    folder = SHARED
    if not (folder / "corpora").is_dir() or not (folder / "tokenizers").is_dir():
        pytest.skip("no folder of corpora and tokenizers beside the project, nor in PACKLINE_SHARED")
    return folder


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    """Short and long strings on which encoders, decoders and JSON writers go wrong."""
    return list(HARD_TEXTS)


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """A few hundred real texts of 1 to 20,000 characters, the hard ones among them.

    Modules are cut at their blank lines into pieces of uneven length, so that lengths spread widely.
    """
    texts = list(HARD_TEXTS)
    for number, (_, module) in enumerate(python_sources(1_500_000)):
        blocks = module.split("\n\n\n")
        step = 1 + number % 5
        texts += ["\n\n\n".join(blocks[i : i + step]) for i in range(0, len(blocks), step)]
    return [text[:20_000] for text in texts if text]


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a byte-level BPE tokenizer.json: 4,096 ids, `<|endoftext|>` is id 0."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=[AddedToken("<|endoftext|>", special=True, normalized=False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for _, text in python_sources(1_500_000)), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="session")
def write_jsonl() -> Callable[..., Path]:
    """`write_jsonl(path, texts, field="text")` writes a line a text and gives the path back.

    A text that is a dict is written as the whole record.
    """

    def write(path: Path, texts: Iterable[str | dict[str, Any]], field: str = "text") -> Path:
        records = (text if isinstance(text, dict) else {field: text} for text in texts)
        lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(lines).encode("utf-8"))
        return path

    return write


@pytest.fixture
def fresh() -> Iterator[Path]:
    """A folder with the same path for all examples of a law: paths are part of the recipe."""
    folder = Path(tempfile.mkdtemp(prefix="packline-"))
    yield folder
    shutil.rmtree(folder)
