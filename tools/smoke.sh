#!/usr/bin/env bash
# Try an installed packline: build, verify, look, pack, read rows, export, train a tokenizer. Half a minute.
# Usage: tools/smoke.sh FOLDER_WITH_PYTHON_AND_PACKLINE
set -euo pipefail
bin=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HF_HUB_OFFLINE=1

mkdir corpus
for file in argparse ast calendar csv datetime decimal difflib; do
  cp "$("$bin/python" -c "import $file; print($file.__file__)")" "corpus/$file.txt"
done
"$bin/packline" tokenizer train corpus --vocab-size 2k --out tokenizer -q >/dev/null
"$bin/packline" build corpus --tokenizer tokenizer --val-documents 1 --out store -q
"$bin/packline" verify store --deep >/dev/null
"$bin/packline" info store >/dev/null
"$bin/packline" view store --document 0 >/dev/null
"$bin/packline" info store --seq-len 1k >/dev/null
"$bin/packline" info store --html report.html -q >/dev/null
for format in nanogpt megatron parquet arrow; do
  "$bin/packline" export store --to "$format" --out "$format" -q
done
"$bin/packline" export store --to npz --seq-len 256 --packing best_fit --out rows -q
"$bin/packline" import nanogpt --from nanogpt --tokenizer tokenizer --out back -q
"$bin/packline" diff store store >/dev/null
"$bin/python" - <<'PYTHON'
import packline

store = packline.open("store")
assert packline.verify("store").ok and len(store) == 7
loader = packline.Loader(store.rows(128, packing="best_fit"), batch_size=4, seed=1)
assert next(iter(loader))["tokens"].shape == (4, 128)
assert packline.trace(loader, 0).rows
print("packline", packline.__version__, "works")
PYTHON
