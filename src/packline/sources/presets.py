"""Presets: recipes for well-known data sets, with their addresses, text fields and splits.

    packline init --preset wikitext-103 --tokenizer gpt2 --out recipe.toml

The addresses are those of the Hugging Face hub (`hf://`, by the package huggingface_hub that comes with
tokenizers). A preset only drafts a recipe, which the user can then edit. Nothing is fetched before `packline
plan` or `build` reads it. Published splits are kept; without any, a share of documents is reserved by hash.
"""

from __future__ import annotations

from typing import NamedTuple

from packline.errors import RecipeError
from packline.recipe import Split


class Files(NamedTuple):
    """Files of one split as they were published."""

    name: str
    inputs: str
    split: Split | None = None


class Preset(NamedTuple):
    """One data set."""

    about: str
    files: tuple[Files, ...]
    text: str = "text"
    id: str | None = None
    val_fraction: float = 0.0
    also: tuple[str, ...] = ()
    """Lines of advice."""


HUB = "hf://datasets"

PRESETS: dict[str, Preset] = {
    "fineweb-edu": Preset(
        "educational pages of the web, the sample of 10 billion tokens",
        (Files("fineweb-edu", f"{HUB}/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"),),
        id="id",
        val_fraction=0.001,
        also=(
            "More of it: sample/100BT/*.parquet, sample/350BT/*.parquet, or data/*/*.parquet for all.",
            'Only the best: where = [{ field = "int_score", op = ">=", value = 4 }]',
        ),
    ),
    "wikitext-103": Preset(
        "good and featured articles of Wikipedia, a paragraph or heading a row",
        (
            Files("train", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/train-*.parquet", "train"),
            Files("validation", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/validation-*.parquet", "val"),
            Files("test", f"{HUB}/Salesforce/wikitext/wikitext-103-raw-v1/test-*.parquet", "test"),
        ),
        also=("About a third of the rows is empty: they are left out and counted.",),
    ),
    "tinystories": Preset(
        "short stories in the words of small children, made by language models",
        (
            Files("train", f"{HUB}/roneneldan/TinyStories/data/train-*.parquet", "train"),
            Files("validation", f"{HUB}/roneneldan/TinyStories/data/validation-*.parquet", "val"),
        ),
    ),
    "openwebtext": Preset(
        "pages that were linked from Reddit",
        (Files("openwebtext", f"{HUB}/Skylion007/openwebtext/plain_text/train-*.parquet"),),
        val_fraction=0.0005,
        also=(
            "A copy by the hub itself: Skylion007/openwebtext@refs/convert/parquet/plain_text/*/*.parquet",
        ),
    ),
    "climbmix": Preset(
        "400 billion tokens of the web, chosen and mixed by cluster, shuffled",
        (Files("climbmix", f"{HUB}/karpathy/climbmix-400b-shuffle/shard_*.parquet"),),
        val_fraction=0.001,
        also=("The first 170 files: shard_000*.parquet and shard_001[0-6]*.parquet.",),
    ),
}


def find_preset(name: str) -> Preset:
    """Look up a preset by name.

    Raises:
        RecipeError: no such preset; the message lists all presets.

    >>> find_preset("tinystories").text
    'text'
    """
    if name not in PRESETS:
        raise RecipeError(f"no preset {name!r}", hint=f"there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]
