"""Lines that an export prints for the trainer, run with the project that they are for."""

from __future__ import annotations

import glob
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import run_peer
from tests.formats.stores import make_store, random_documents, random_loss
from tests.project.trainer_checks import OLMO

from packline.facade import Store
from packline.formats.export import Exported, run_export
from packline.formats.format import get_format
from packline.formats.row_view import RowView
from packline.packing.batch import FIELDS
from packline.packing.options import ExportChoice

EOD, VOCAB, LENGTH = 7, 300, 32
PAGES = Path(__file__).parents[2] / "docs" / "trainers"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    documents = random_documents(60, VOCAB, longest=20, seed=2)
    return make_store(tmp_path / "a store", documents, vocab_size=VOCAB, eod_id=EOD, shards=2, val=(3, 50))


def lines_of(store: Store, name: str, out: Path, **options: Any) -> tuple[str, ...]:
    """The lines of an export, which is asked for twice: they do not go with the work."""
    rows = get_format(name).kind == "rows"
    choice = ExportChoice(seq_len=LENGTH, packing="best_fit") if rows else ExportChoice()
    done: list[Exported] = [
        run_export(store.path, to=name, out=out, options=options, choice=choice, workers=0) for _ in range(2)
    ]
    assert done[1].nothing_to_do and done[0].trainer_lines == done[1].trainer_lines
    return done[0].trainer_lines


def rows_of(store: Store, fields: Sequence[str] = FIELDS, seed: int | None = 0) -> dict[str, np.ndarray]:
    view = RowView.of_store(store, seq_len=LENGTH, packing="best_fit", seed=seed)
    return view.read(0, view.rows, fields)


def test_the_page_has_the_lines_for_trl(store: Store, tmp_path: Path) -> None:
    lines = lines_of(store, "trl", tmp_path / "out")
    page = (PAGES / "trl.md").read_text("utf-8")
    settings = "\n".join(lines).partition("SFTConfig(")[2].splitlines()
    assert len(settings) == 5 and all(line in page for line in settings)


# TRL's own Trainer on the pasted settings, as far as its first batch; the model is a tiny one.
TRL = """
import functools, torch, transformers, trl
names = {}
own, made = trl.SFTConfig, []
trl.SFTConfig = functools.partial(
    own, output_dir=arguments[1], use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=2
)
exec(arguments[2], names)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
torch.manual_seed(1)
torch.set_num_threads(1)
config = transformers.LlamaConfig(vocab_size=300, num_key_value_heads=2, max_position_embeddings=64, **sizes)
tokenizer = transformers.AutoTokenizer.from_pretrained(arguments[0])
trainer = trl.SFTTrainer(
    model=transformers.LlamaForCausalLM(config), args=names["config"],
    train_dataset=names["train_dataset"], processing_class=tokenizer,
)
batch = next(iter(trainer.get_train_dataloader()))
answer = {name: values.tolist() for name, values in batch.items() if isinstance(values, torch.Tensor)}
"""


@pytest.mark.slow
def test_trl_keeps_documents_apart_with_the_lines(store: Store, tmp_path: Path) -> None:
    lines = lines_of(store, "trl", tmp_path / "out")
    found = run_peer(
        TRL,
        tmp_path / "out",
        tmp_path / "trainer",
        "\n".join(lines),
        modules=("trl", "transformers", "accelerate", "datasets"),
    )
    wanted = rows_of(store)
    first = [wanted["tokens"][row][wanted["segment_ids"][row] >= 0].tolist() for row in (0, 1)]
    positions = [wanted["position_ids"][row][wanted["segment_ids"][row] >= 0].tolist() for row in (0, 1)]
    assert found["input_ids"] == [first[0] + first[1]]  # one behind another, in training order
    assert found["position_ids"] == [positions[0] + positions[1]]
    assert "attention_mask" not in found
    assert positions[0].count(0) > 1


MLX = """
import mlx.core as mx
names = {"model": lambda tokens: mx.ones((*tokens.shape, 300))}
exec(arguments[0], names)
answer = [names["loss"].item(), int(names["mask"].sum())]
"""


@pytest.mark.parametrize("mask", ["loss", "padding"])
def test_mlx_takes_the_mean_over_targets_alone(store: Store, tmp_path: Path, mask: str) -> None:
    lines = lines_of(store, "npz", tmp_path / "out", mask=mask)
    loss, counted = run_peer(MLX, "\n".join(lines), modules=("mlx",))
    learned = rows_of(store, seed=None)["targets"][:32] != -100
    assert counted == learned.sum() < learned.size and np.isclose(loss, np.log(VOCAB))


READ = """
names = {}
exec(arguments[0], names)
answer = [{name: values.tolist() for name, values in one.items()} for one in names["dataset"]]
"""


def test_streaming_reads_records_in_order(store: Store, tmp_path: Path) -> None:
    fields = ["tokens", "targets", "loss_mask"]
    lines = lines_of(store, "mds", tmp_path / "out", fields=fields)
    found = run_peer(READ, "\n".join(lines), modules=("streaming",))
    wanted = rows_of(store, fields)
    for field in fields:
        assert [one[field] for one in found] == wanted[field].tolist()


@pytest.mark.parametrize("files", ["many", "single"])
def test_megatron_is_given_every_pair_of_every_split(store: Store, tmp_path: Path, files: str) -> None:
    out = tmp_path / "out put"
    words = shlex.split(" ".join(lines_of(store, "megatron", out, files=files)))
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            given[word] = []
        else:
            given[list(given)[-1]].append(word)
    pairs = sorted(str(path.with_suffix("")) for path in out.glob("*.idx"))
    assert sorted(given["--train-data-path"] + given["--valid-data-path"]) == pairs
    assert all("train" in Path(path).name for path in given["--train-data-path"])
    assert all("val" in Path(path).name for path in given["--valid-data-path"])
    assert given["--tokenizer-model"] == [str(out)]


def test_many_pairs_of_megatron_are_named_by_a_pattern(tmp_path: Path) -> None:
    documents = random_documents(24, VOCAB, longest=20, seed=2)
    store = make_store(tmp_path / "store", documents, vocab_size=VOCAB, eod_id=EOD, shards=12)
    line = lines_of(store, "megatron", tmp_path / "out")[0]
    shown = subprocess.run(["sh", "-c", f"echo {line}"], capture_output=True, text=True, check=True).stdout
    assert shown.split()[1:] == sorted(str(path.with_suffix("")) for path in (tmp_path / "out").glob("*.idx"))


def test_the_per_split_arguments_of_megatron_name_every_pair(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines_of(store, "megatron", out)
    listed = json.loads((out / "data_args.json").read_bytes())
    assert listed["test"] is None and sorted(listed) == ["test", "train", "valid"]
    pairs = sorted(path.stem for path in out.glob("*.idx"))
    assert sorted(listed["train"] + listed["valid"]) == pairs
    assert all(name.startswith("train") for name in listed["train"])
    (line, *_) = lines_of(store, "megatron", tmp_path / "moved", root="/data/tokens")
    argument, path = shlex.split(line)
    assert argument == "--per-split-data-args-path"
    assert json.loads(Path(path).read_bytes())["valid"][0] == f"/data/tokens/{listed['valid'][0]}"


def documents_of(store: Store, split: str = "train") -> list[list[int]]:
    numbers = range(len(store.documents))
    return [store.documents[n].tolist() for n in numbers if store.provenance(n).split == split]


def test_llmc_is_given_all_shards_and_the_size_of_the_smallest(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out put"
    first, *rest = lines_of(store, "llmc", out)
    _, *words = shlex.split(first.partition("  #")[0])
    given = dict(zip(words[::2], words[1::2], strict=True))
    names: dict[str, str] = {}
    exec("\n".join(rest), names)
    assert names["train_files"] == given["-i"] and names["val_files"] == given["-j"]
    sizes = []
    for flag, split in (("-i", "train"), ("-j", "val")):
        shards = [Path(path).read_bytes() for path in sorted(glob.glob(given[flag]))]
        tokens = np.concatenate([np.frombuffer(shard, "<u2", offset=1024) for shard in shards])
        moved = [EOD, *(token for one in documents_of(store, split) for token in one)][:-1]
        assert tokens.tolist() == moved
        sizes += [(len(shard) - 1024) // 2 for shard in shards]
    assert f"below {min(sizes):,}:" in first


READ_ALL = """
answer = {}
for name, lines in json.loads(arguments[0]).items():
    names = {}
    exec(lines.replace("2048", "31"), names)
    dataset = names["dataset"]
    rows = dataset["train"] if hasattr(dataset, "keys") else dataset
    rows = [rows[number] for number in range(len(rows))] if name == "forager" else list(rows)
    ids = [row["input_ids"] if isinstance(row, dict) else row for row in rows]
    answer[name] = [[int(one) for one in row] for row in ids]
"""
READERS = ("litdata", "datatrove", "forager", "arrow", "parquet")


def test_readers_give_rows_and_documents_with_the_lines(store: Store, tmp_path: Path) -> None:
    options = {"datatrove": {"files": "single"}}
    lines = {
        name: "\n".join(lines_of(store, name, tmp_path / name, **options.get(name, {}))) for name in READERS
    }
    modules = ("litdata", "torch", "datatrove", "data_forager", "datasets")
    found = run_peer(READ_ALL, json.dumps(lines), modules=modules)
    documents = documents_of(store)
    assert found["forager"] == found["arrow"] == found["parquet"] == documents
    stream = [token for one in documents for token in one]
    whole = len(stream) // LENGTH * LENGTH  # datatrove's rows have a token more than the 31 asked for
    assert np.array_equal(np.concatenate(found["datatrove"]), stream[:whole])
    rows, wanted = np.array(found["litdata"]), rows_of(store)  # and the token behind each
    assert np.array_equal(rows[:, :-1], wanted["tokens"])
    inside = wanted["targets"] != -100
    assert np.array_equal(rows[:, 1:][inside], wanted["targets"][inside])


READ_OLMO = """
answer = []
for lines in json.loads(arguments[1]):
    names = {}
    exec(lines.replace("4096", "32"), names)
    dataset = names["dataset"].build()
    dataset.prepare()
    rows = [dataset[number] for number in range(len(dataset))]
    keys = [key for key in ("input_ids", "label_mask") if key in rows[0]]
    answer.append({key: [row[key].tolist() for row in rows] for key in keys})
"""


def test_olmo_core_reads_rows_and_masks(tmp_path: Path) -> None:
    documents = random_documents(40, VOCAB, longest=20, seed=6)
    loss, shape = random_loss(documents), {"vocab_size": VOCAB, "eod_id": EOD, "val": (3,), "shards": 2}
    store = make_store(tmp_path / "plain", documents, **shape)  # type: ignore[arg-type]
    other = make_store(tmp_path / "masked", documents, loss=loss, **shape)  # type: ignore[arg-type]
    lines = [
        "\n".join(lines_of(one, "olmo", tmp_path / f"{one.path.name} out", files="single"))
        for one in (store, other)
    ]
    plain, masked = run_peer(OLMO + READ_OLMO, tmp_path, json.dumps(lines), modules=("olmo_core", "torch"))
    stream = [token for one in documents_of(store) for token in one]
    whole = len(stream) // LENGTH * LENGTH
    assert np.array_equal(np.concatenate(plain["input_ids"]), stream[:whole])
    assert masked["input_ids"] == plain["input_ids"] and "label_mask" not in plain
    flags = [flag for number, mask in enumerate(loss) if number != 3 for flag in mask]
    assert np.array_equal(np.concatenate(masked["label_mask"]), np.array(flags[:whole], bool))


def test_the_page_has_the_lines_for_levanter(store: Store, tmp_path: Path) -> None:
    lines = lines_of(store, "levanter", out := tmp_path / "out")
    shown = "\n".join(lines).replace(str(out), "rows").replace(f"length: {LENGTH}", "length: 1024")
    assert shown in (PAGES / "levanter.md").read_text("utf-8")
    urls = [json.loads(line.partition(": ")[2])[0] for line in lines if "_urls" in line]
    files = [path for url in urls for path in glob.glob(url)]
    assert sorted(files) == sorted(map(str, out.rglob("*.parquet")))


def test_baked_rows_are_read_in_order(store: Store, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec("\n".join(lines_of(store, "baked", tmp_path / "out")), names)
    assert np.array_equal(names["batch"]["tokens"], rows_of(store)["tokens"][:8])


def test_nanogpt_is_told_the_folder_and_of_a_vocabulary_that_is_too_large(tmp_path: Path) -> None:
    store = make_store(tmp_path / "small", [[1, 2]], vocab_size=VOCAB, eod_id=EOD)
    (line,) = lines_of(store, "nanogpt", tmp_path / "a")
    names: dict[str, Any] = {}
    exec(line, names)
    assert names["dataset"] == str(tmp_path / "a")
    large = make_store(tmp_path / "large", [[1, 2]], vocab_size=60_000, eod_id=EOD)
    assert "meta_pkl=true" in lines_of(large, "nanogpt", tmp_path / "b")[1]
    assert len(lines_of(large, "nanogpt", tmp_path / "c", meta_pkl=True)) == 1


def test_levanter_is_told_to_keep_the_order() -> None:
    """Its `train_set` puts every component through a mixture that permutes rows within blocks."""
    page = (PAGES / "levanter.md").read_text("utf-8")
    yaml = page[page.index("  shuffle: false") :].splitlines()[:2]
    assert [line.partition("  #")[0] for line in yaml] == ["  shuffle: false", "  mixture_block_size: 1"]
