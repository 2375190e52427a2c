"""Calls of the public names for type checkers: `mypy` accepts what is right, and finds each mistake.

Nothing here runs. `make check` compares it: an `ignore` of a mistake that is none is an error, too.
"""

from __future__ import annotations

from pathlib import Path

import packline


def right() -> None:
    store = packline.build(
        "in.jsonl", "tokenizer.json", out="store", eod="</s>", val_fraction=0.01, workers=2
    )
    recipe = packline.Recipe(sources=(packline.Source(inputs=("in.jsonl",)),), tokenizer="tokenizer.json")
    store = packline.build(recipe, out=Path("store"), memory="4GiB")
    opened: packline.Store = packline.open("store", verify=True)
    rows: packline.Rows = opened.rows(4096, packing="best_fit", labels=["web"], min_tokens=10)
    short = rows.split_to(1024)
    mixture = packline.Mixture([(rows, 0.7), (store.rows(4096), "1/3", None)])
    stages = [packline.Stage(mixture, tokens=1_000_000), packline.Stage(short)]
    loader = packline.Loader(stages, batch_size=8, seed=1)
    loader = packline.Loader.from_file("run.toml", rank=0, world_size=2, prefetch=0)
    for batch in loader:
        print(batch["tokens"].shape)
    print(packline.estimate(["a.jsonl", "b.jsonl"], "tokenizer.json").documents)
    packline.export(store, out="out", to="npz", seq_len=512, packing="pad", overflow="split")
    packline.export("in.jsonl", out="out", to="llmc", tokenizer="tokenizer.json", eod=0)
    packline.write_rows(loader, out="rows", on_event=print)
    packline.import_("shards", out="back", tokenizer="tokenizer.json", options={"edges": "eod"})
    packline.sft("chat.jsonl", "tokenizer.json", out="chat", overflow="truncate", max_tokens=4096)
    for row in rows[10:20]:
        print(row.text, rows.read(0)["tokens"].shape, rows[10:20].read()["targets"].shape)
    print(store.sources["web"].tokens, store.labels, len(store), store.decode([1, 2]))
    assert packline.verify("store").ok
    print(
        packline.trace(loader, 3).rows[0].spans, packline.trace("run.toml", document=7, store="store")[0].step
    )
    try:
        packline.open("nowhere")
    except packline.PacklineError as error:
        print(error.hint)
    packline.analyze(store, seq_len=512)
    packline.report(store, out="report.html")
    packline.view("store", row=3, seq_len=512)
    print(packline.info("store", documents=1))


def mistaken() -> None:
    store = packline.build("in.jsonl", "tokenizer.json", out="store", val_fracton=0.01)  # type: ignore[call-arg]
    store = packline.build("in.jsonl", "tokenizer.json", out="store", workers="two")  # type: ignore[arg-type]
    store = packline.build("in.jsonl", "tokenizer.json")  # type: ignore[call-arg]
    store.rows(4096, packing="best-fit")  # type: ignore[arg-type]
    store.rows(4096, window=3)  # type: ignore[call-arg]
    store.rows("4096")  # type: ignore[arg-type]
    store.rows(4096).rechunk(1024)  # type: ignore[attr-defined]
    packline.Loader(store.rows(512), batch_size=8, sead=1)  # type: ignore[call-arg]
    packline.Loader.from_file("run.toml", batchsize=8)  # type: ignore[call-arg]
    packline.Mixture([(store.rows(512), None)])  # type: ignore[list-item]
    packline.Stage(store.rows(512), from_step="many")  # type: ignore[arg-type]
    packline.export(store, out="out", to="npz", seqlen=512)  # type: ignore[call-arg]
    packline.export(store, out="out", to="npz", packing=3)  # type: ignore[arg-type]
    packline.estimate("in.jsonl", "tokenizer.json", engine="fast")  # type: ignore[arg-type]
    packline.sft("chat.jsonl", "tokenizer.json", out="chat", overflow="drop")  # type: ignore[arg-type]
    packline.import_("shards", out="back", tokenizer="t", format="llmc")  # type: ignore[call-arg]
    packline.load("run.toml")  # type: ignore[attr-defined]
    packline.view("store", rwo=3)  # type: ignore[call-arg]
