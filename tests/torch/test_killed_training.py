"""Trainings that are killed and started again: the tokens of all steps are those of the loader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faults.processes import kill_all
from tests.formats.peers import ROOT, missing_peers, peers_python

import packline
from packline.testing import make_store

pytest.importorskip("torch", reason="the optional torch is not installed")

STEPS = 24
KILLS = (8, 15) if os.environ.get("PACKLINE_ALL") else (8,)
"""Lines of the log after which the process is killed; every third step is saved."""
BEGIN = """
import hashlib, json, os, sys, time, warnings
from pathlib import Path

warnings.simplefilter("ignore")
sys.path += json.loads(os.environ["OWN_PATH"])

import torch
from torch.utils.data import DataLoader

import packline, packline.torch

torch.set_num_threads(1)
folder, workers, method = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if sys.argv[2] != "0" else None
log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
saved = folder / "state.json"


def note(step, tokens):
    "Write down what a step trains on."
    digest = hashlib.sha256(tokens.int().numpy().tobytes()).hexdigest()
    os.write(log, f"{step} {digest}\\n".encode())
    time.sleep(0.02)


def save(state, path=saved):
    path.with_suffix(".new").write_text(json.dumps(state))
    os.replace(path.with_suffix(".new"), path)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(211, 211)

    def forward(self, input_ids, labels, position_ids, **more):
        logits = self.table(input_ids.long())
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def make_loader(**settings):
    return packline.Loader(packline.open(folder.parent / "store").rows(64), batch_size=8, seed=1, **settings)


def main():
"""
PLAIN = """
loader = make_loader()
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
dataset, first = packline.torch.LoaderDataset(loader), loader.step
batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
for n, batch in enumerate(batches, 1):
    note(first + n - 1, batch["tokens"])
    if n % 3 == 0:
        save(dataset.state_after(n) if workers else loader.state_dict())
"""
STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader

dataset = packline.torch.LoaderDataset(make_loader())
batches = StatefulDataLoader(
    dataset, batch_size=None, num_workers=workers, multiprocessing_context=method
)
first = 0
if saved.exists():
    first, state = json.loads(saved.read_text())
    batches.load_state_dict(state)
for step, batch in enumerate(batches, first):
    note(step, batch["tokens"])
    if step % 3 == 2:
        save([step + 1, batches.state_dict()])
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
loader = make_loader(keys="huggingface")
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
dataset, first = packline.torch.LoaderDataset(loader), loader.step
batches = accelerator.prepare(
    DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
)
for n, batch in enumerate(batches, 1):
    note(first + n - 1, batch["input_ids"])
    if n % 3 == 0:
        assert workers or loader.step == min(first + n + 1, len(loader))  # one ahead
        save(dataset.state_after(n))
"""
TRAINER = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

loader = make_loader(keys="huggingface")
dataset = packline.torch.LoaderDataset(loader)


class PacklineTrainer(Trainer):
    def get_train_dataloader(self):
        batches = DataLoader(
            self.train_dataset, batch_size=None, num_workers=workers, multiprocessing_context=method
        )
        return batches

    def training_step(self, model, inputs, *more):
        note(self.state.global_step * 2 + self.micro, inputs["input_ids"])
        self.micro = 1 - self.micro
        return super().training_step(model, inputs, *more)

    micro = 0


class SaveLoader(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        self.begun = state.global_step

    def on_save(self, args, state, control, **kwargs):
        taken = (state.global_step - self.begun) * args.gradient_accumulation_steps
        place = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
        save(dataset.state_after(taken), place)


settings = TrainingArguments(
    output_dir=folder / "out", max_steps=len(loader) // 2, gradient_accumulation_steps=2, use_cpu=True,
    save_steps=2, logging_steps=1, report_to=[], disable_tqdm=True, ignore_data_skip=True,
)
checkpoint = get_last_checkpoint(folder / "out") if (folder / "out").exists() else None
if checkpoint:
    loader.load_state_dict(json.loads(Path(checkpoint, "loader.json").read_text()))
trainer = PacklineTrainer(model=Model(), args=settings, train_dataset=dataset, callbacks=[SaveLoader()])
trainer.train(resume_from_checkpoint=checkpoint)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

loader = make_loader(keys="huggingface")
dataset = packline.torch.LoaderDataset(loader)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, number):
        note(self.trainer.global_step, batch["input_ids"])
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_train_start(self):
        self.begun = self.trainer.global_step

    def on_save_checkpoint(self, checkpoint):
        trained = (self.trainer.global_step - self.begun) * self.trainer.accumulate_grad_batches
        checkpoint["loader"] = dataset.state_after(trained)

    def on_load_checkpoint(self, checkpoint):
        loader.load_state_dict(checkpoint["loader"])


every = ModelCheckpoint(folder / "out", filename="{step:04d}", every_n_train_steps=3, save_top_k=-1)
trainer = lightning.Trainer(
    max_epochs=1, callbacks=[every], accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False, use_distributed_sampler=False,
)
batches = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
last = max((folder / "out").glob("*.ckpt"), default=None)
trainer.fit(Module(), batches, ckpt_path=last)
"""
END = """

if __name__ == "__main__":
    main()
"""


def start(folder: Path, script: Path, python: str, how: tuple[int, str]) -> subprocess.Popen[bytes]:
    own = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    environment = {**os.environ, "OWN_PATH": json.dumps(own), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    folder.mkdir(exist_ok=True)
    with (folder / "errors").open("ab") as errors:
        return subprocess.Popen(
            [python, str(script), str(folder), str(how[0]), how[1]],
            stdout=errors,
            stderr=errors,
            env=environment,
            start_new_session=True,
            cwd=folder,
        )


def lines(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def run(folder: Path, program: str, python: str, how: tuple[int, str], kills: tuple[int, ...]) -> list[str]:
    """Lines of the log of a training that is killed after some lines, and started again."""
    script = folder.with_suffix(".py")
    body = "".join(f"    {line}\n" for line in program.splitlines())
    script.write_text(BEGIN + body + END)
    for kill in kills:
        process = start(folder, script, python, how)
        until = time.monotonic() + 120
        while len(lines(folder)) < kill:
            assert process.poll() is None and time.monotonic() < until, (folder / "errors").read_text()[
                -3000:
            ]
            time.sleep(0.005)
        kill_all(process.pid)
        assert process.wait() == -signal.SIGKILL
    process = start(folder, script, python, how)
    assert process.wait(120) == 0, (folder / "errors").read_text()[-3000:]
    return lines(folder)


def steps_of(log: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in log]


TRAINERS = ("torch", "transformers", "accelerate")
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "DataLoader": (PLAIN, ("torch",)),
    "StatefulDataLoader": (STATEFUL, ("torch", "torchdata")),
    "accelerate": (ACCELERATE, ("torch", "accelerate")),
    "Trainer": (TRAINER, TRAINERS),
    "Trainer ahead": (
        TRAINER.replace("return batches", "return self.accelerator.prepare(batches)"),
        TRAINERS,
    ),
    "Lightning": (LIGHTNING, ("torch", "lightning")),
}
WAYS = [("DataLoader", 2, "fork"), ("Trainer", 0, "fork")]
"""Program, workers and how they start."""
MORE = [("DataLoader", *how) for how in ((0, "fork"), (1, "fork"), (1, "spawn"), (2, "spawn"))]
MORE += [("StatefulDataLoader", *how) for how in ((0, "fork"), (2, "fork"), (2, "spawn"))]
MORE += [("accelerate", 0, "fork"), ("accelerate", 2, "fork"), ("Trainer", 2, "fork")]
MORE += [("Lightning", 0, "fork"), ("Lightning", 2, "fork"), ("Trainer ahead", 0, "fork")]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "workers", "method"),
    [*WAYS, *(pytest.param(*way, marks=pytest.mark.long(only=True)) for way in MORE)],
)
def test_a_killed_training_trains_on_the_same_tokens(
    tmp_path: Path, name: str, workers: int, method: str
) -> None:
    (program, modules), how = PROGRAMS[name], (workers, method)
    python = sys.executable if name.endswith("DataLoader") else peers_python()
    if missing := missing_peers(python, modules):
        pytest.skip(f"not installed: {missing} (make peers)")
    make_store(tmp_path / "store", [[41] * (STEPS * 8 * 64 // 41 + 1)], vocab_size=211)
    loader = packline.Loader(packline.open(tmp_path / "store").rows(64), batch_size=8, seed=1)
    whole = [f"{step} {sha256(batch['tokens'].tobytes()).hexdigest()}" for step, batch in enumerate(loader)]
    killed = run(tmp_path / "killed", program, python, how, KILLS)
    assert len(set(whole)) == STEPS
    assert sorted(set(killed)) == sorted(whole)  # the same tokens, also of steps that were repeated
    steps = steps_of(killed)
    begun = [step for before, step in pairwise(steps) if step != before + 1]
    assert len(begun) == len(KILLS) and min(begun) > 0  # it went on from a checkpoint
