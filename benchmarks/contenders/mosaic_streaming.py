"""mosaicml-streaming's StreamingDataset over MDS shards that its own writer made, one row an item.

    PEERS_PYTHON -m benchmarks.contenders.mosaic_streaming FOLDER --prepare tokens.bin
    PEERS_PYTHON -m benchmarks.contenders.mosaic_streaming FOLDER

Items have one column, `tokens`: 4,097 of them as an int32 array. Shuffled, local, in this process, in batches
of a torch DataLoader; tokens and targets are two slices of the batch.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import itertools
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.contenders.batches import (
    ROWS,
    SEQ_LEN,
    TIMED_SECONDS,
    check_batch,
    report_rate,
    use_one_thread,
)


def main() -> None:
    """Write the shards, or read batches for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--prepare", metavar="TOKENS", help="write the shards from a file of uint16 tokens")
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    stand_in_for_torchvision()
    if arguments.prepare:
        write_shards(arguments.prepare, arguments.folder)
        print("{}")
        return
    use_one_thread()
    # Its arrays are views of bytes, which torch dislikes and copies anyway.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    batches = endless_batches(arguments.folder)

    def next_batch() -> tuple[Any, Any]:
        tokens = next(batches)["tokens"]
        return tokens[:, :SEQ_LEN].contiguous(), tokens[:, 1:].contiguous()

    check_batch(*next_batch())
    report_rate(next_batch, arguments.seconds)


def stand_in_for_torchvision() -> None:
    """Empty modules: the package imports torchvision for images, whose wheel fits few builds of torch."""
    names = ("", ".datasets", ".transforms", ".transforms.functional")
    modules = {f"torchvision{name}": types.ModuleType(f"torchvision{name}") for name in names}
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(modules[parent], own, module)
    vars(modules["torchvision.datasets"])["VisionDataset"] = type("VisionDataset", (), {})
    vars(modules["torchvision.transforms.functional"])["to_tensor"] = None
    sys.modules.update(modules)


def write_shards(tokens: str, folder: str) -> None:
    """MDS, uncompressed, shards of the default size."""
    from streaming import MDSWriter

    data = np.memmap(tokens, np.uint16, "r")
    with MDSWriter(out=folder, columns={"tokens": "ndarray:int32"}, compression=None) as writer:
        for start in range(0, len(data) - SEQ_LEN, SEQ_LEN):
            writer.write({"tokens": data[start : start + SEQ_LEN + 1].astype(np.int32)})


def endless_batches(folder: str) -> Iterator[Any]:
    """Batches, one epoch after another."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=folder, batch_size=ROWS, shuffle=True)
    loader = DataLoader(dataset, batch_size=ROWS, drop_last=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


if __name__ == "__main__":
    main()
