"""The loader: batches of a run, for one rank, from any step.

A batch is a function of its step, so the state is the step and a fingerprint that prevents its use with other
data. World size, rank, prefetch and fields are not in the state. Rank r of W gets rows r*b to (r+1)*b of
each, b = B / W. Steps that are read in order are planned together, so a batch costs less than a call of
`rows.read`, also of several sources.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np

from packline.errors import RecipeError, unknown_name
from packline.loading.ahead import FetchAhead, PlanAhead, ReadAhead, make_ahead, total_traffic
from packline.loading.mixture import Mixture, Stage
from packline.loading.order import row_order
from packline.loading.schedule import BatchRows, Occurrences, Schedule, ScheduledStage, parts_of
from packline.loading.state import check, fingerprint_of, save_state
from packline.notebook import Notebook
from packline.packing.batch import ALL_FIELDS, FIELDS, CompactBatch
from packline.packing.layout import IGNORED
from packline.packing.options import Keys, LoaderOptions, check_options
from packline.packing.rows import Rows

if TYPE_CHECKING:
    from typing import Unpack

    from packline.settings import LoaderKeywords
    from packline.store.fetching import Traffic
    from packline.store.files import StoreFiles


Batch = dict[str, np.ndarray]

OWN_NAMES = {"tokens": "input_ids", "targets": "labels"}
OF_FILE = [name for name in LoaderOptions.__struct_fields__ if name != "plans"]
KNOWN = frozenset(OF_FILE) | {"rank", "world_size", "epochs"}


class Loader(Notebook):
    """Batches in order, for one rank of a run.

    Args:
        rows: rows, a mixture, a stage, or stages in sequence.
        batch_size: rows per global batch, over all ranks. Stages may have their own.
        batch_tokens: the same in tokens, for stages of any row length: a number, or text such as "2M", which
            is 2,097,152. Each row length must divide it, and the ranks must share its rows.
        seed: seed for the order of rows.
        rank: number of this rank, from 0.
        world_size: number of ranks that share each global batch.
        shuffle: False gives rows in the order of their numbers.
        order: "global" permutes all rows; "blocks" shuffles blocks of rows within windows, so that a disk is
            read sequentially and a store can be read while it is built. See `packline.loading.order`.
        block_rows: for blocks: adjacent rows that stay together; default 256.
        window_blocks: for blocks: blocks whose rows are mixed; default 256.
        epochs: number of passes over plain rows. Mixtures and stages set `max_epochs` per source.
        fields: arrays to read, out of tokens, targets, position_ids, segment_ids and loss_mask. None: the
            first four, or with keys of Hugging Face the first three.
        keys: "huggingface" names tokens `input_ids`, and instead of targets gives int64 `labels` that are not
            shifted, because such models shift them internally; the last target of a row is lost. Call them as
            `model(**batch, use_cache=False)`: with a cache, documents in the same row see each other
            (`packline.torch.check_packing`).
        prefetch: number of batches that a thread prepares ahead; 0 for no thread.

    Raises:
        RecipeError: settings that contradict each other, or a source with too few rows (see `Schedule`); a
            stage with `from_step` that would train again on documents of an earlier one.

    With a store of one document, `a b a a b a ...`, where a is token 0 and b is 1:

    >>> import packline
    >>> loader = packline.Loader(store.rows(seq_len=5), batch_size=2, shuffle=False)
    >>> next(iter(loader))["targets"].tolist()
    [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
    >>> loader.state_dict()["step"]
    1
    """

    def __init__(
        self,
        rows: Rows | Mixture | Stage | Sequence[Stage],
        *,
        rank: int = 0,
        world_size: int = 1,
        epochs: int | None = 1,
        **settings: Unpack[LoaderKeywords],
    ) -> None:
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        sizes = {name: given.pop(name, None) for name in ("batch_size", "batch_tokens")}
        self.fields = chosen_fields(given.pop("fields", None), given.get("keys", "packline"))
        if unknown := given.keys() - KNOWN:
            word = min(unknown)
            raise unknown_name(f"Loader has no setting {word!r}", word, KNOWN)
        options = check_options(LoaderOptions(**given))
        self._place(options, rank, world_size)
        order = row_order(options)
        self.schedule = Schedule(_stages(rows, epochs), **sizes, seed=self.seed, order=order)
        self._check_batch_sizes()
        if any(stage.from_step for stage in self.schedule.declared):
            from packline.loading.run_summary import refuse_used_again

            refuse_used_again(self.schedule)

    def _place(self, options: LoaderOptions, rank: int, world_size: int) -> None:
        rank, world_size = operator.index(rank), operator.index(world_size)  # NumPy's integers too
        if world_size < 1 or not 0 <= rank < world_size:
            raise RecipeError(f"expected a rank from 0 to world_size - 1 = {world_size - 1}, found {rank}")
        self.seed, self.rank, self.world_size = options.seed, rank, world_size
        self.keys, self.prefetch = options.keys, options.prefetch
        self.begins_at = self._step = self._pass = 0
        self.workers_began: Any = [False]
        """True if worker processes make the batches; a dataset of torch shares it with them."""

    def _check_batch_sizes(self) -> None:
        """Refuse batches that the ranks cannot share."""
        for number, (stage, size) in enumerate(zip(self.schedule.declared, self.schedule.sizes, strict=True)):
            if size % self.world_size:
                more = size + -size % self.world_size
                raise RecipeError(
                    f"stage {number}: expected a batch_size that {self.world_size} ranks can share, "
                    f"found {size:,}; a row has {stage.seq_len:,} tokens",
                    hint=f"next multiple of world_size: {more:,} rows ({more * stage.seq_len:,} tokens)",
                )

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        rank: int = 0,
        world_size: int = 1,
        **changes: Unpack[LoaderKeywords],
    ) -> Loader:
        """Make the loader of a run file.

        Args:
            path: a TOML file; docs/reading.md lists its settings.
            rank: number of this process among those that train, from 0.
            world_size: number of such processes.
            changes: settings of `Loader` that replace those of the file; None: as in the file.

        Raises:
            RecipeError: an invalid run file, or a rank outside the world.
            StoreError: a store is missing, damaged or has no rows to give.

        >>> Loader.from_file("missing.toml")
        Traceback (most recent call last):
        packline.errors.RecipeError: cannot read the run file missing.toml: No such file or directory
        """
        from packline.loading.run_file import load_run

        stages, options = load_run(path)
        settings: Any = {name: getattr(options, name) for name in OF_FILE}
        given = {name: value for name, value in changes.items() if value is not None}
        if given.keys() & {"batch_size", "batch_tokens"}:
            settings |= {"batch_size": None, "batch_tokens": None}
        return cls(stages, rank=rank, world_size=world_size, **settings | given)

    def __len__(self) -> int:
        """Total number of steps: batches from the first to the last, whatever the current step."""
        return len(self.schedule)

    @property
    def total(self) -> int | None:
        """Total number of steps; None while that of a store that is followed is not known."""
        return len(self.schedule)

    def has_step(self, step: int) -> bool:
        """True if the run has this step."""
        return step < len(self)

    @property
    def building(self) -> tuple[str, ...]:
        """Folders of stores that are still being built: none, unless the loader follows them."""
        return ()

    @property
    def left_over_rows(self) -> int:
        """Rows that do not fill a last batch, of stages that run until a source is used up."""
        return sum(stage.left_over for stage in self.schedule.stages)

    @property
    def step(self) -> int:
        """Batches returned so far in this process; those prepared ahead do not count."""
        return self._step

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that determines the contents of the global batches."""
        return fingerprint_of(self.schedule)

    def batch(self, step: int) -> Batch:
        """This rank's part of any batch, without advancing the loader.

        Returns:
            Arrays `[B / world_size, L]` by name, new ones at every call.

        Raises:
            IndexError: no such step.
            CorruptStore: a store is damaged there.
        """
        return named(CompactBatch.read(parts_of(*self.place_of(step)), self.fields).arrays(), self.keys)

    @overload
    def __getitem__(self, step: int) -> Batch: ...
    @overload
    def __getitem__(self, step: slice) -> list[Batch]: ...
    def __getitem__(self, step: int | slice) -> Batch | list[Batch]:
        """`batch` of a step, of a negative one from the end, or of several, by a slice.

        >>> loader = Loader(store.rows(seq_len=5), batch_size=1, shuffle=False)
        >>> loader[-1]["tokens"].tolist(), len(loader[1:3]), loader.step
        ([[0, 0, 1, 0, 2]], 2, 0)
        """
        if isinstance(step, slice):
            return [self.batch(one) for one in range(len(self))[step]]
        number = operator.index(step)
        return self.batch(number + len(self) if number < 0 else number)

    def next_batch(self, step: int) -> Batch:
        """As `batch`, for one step after another: what later steps read is fetched or read ahead."""
        return named(self.compact_batch(step).arrays(), self.keys)

    def compact_batch(self, step: int) -> CompactBatch:
        """As `next_batch`, in an eighth of the bytes: `named(compact.arrays(), loader.keys)` is the batch."""
        return CompactBatch.of(self._ahead.plan(self, operator.index(step)), self.fields)

    @cached_property
    def _ahead(self) -> PlanAhead:
        """Plans of coming steps, for steps that are read in order."""
        if self._remote:
            return FetchAhead(self._remote)
        return ReadAhead() if self.schedule.order.kind == "blocks" else PlanAhead()

    @property
    def _remote(self) -> list[StoreFiles]:
        found = dict.fromkeys(rows.store.files for rows in self.schedule.sources.values())
        return [files for files in found if files.traffic is not None]

    def place_of(self, step: int) -> tuple[ScheduledStage, int, int]:
        """Stage of a step, and the range of this rank's rows in it."""
        step = operator.index(step)
        stage = self.schedule.stage_of(step)
        size = stage.batch_size // self.world_size
        start = (step - stage.first_step) * stage.batch_size + self.rank * size
        return stage, start, start + size

    @property
    def traffic(self) -> Traffic | None:
        """Requests, bytes, and waits for bytes of this process, if a store is remote; else None."""
        if not self._remote:
            return None
        return total_traffic(self._remote)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate from the beginning, or once from a loaded state, to the end of the run."""
        first, self.begins_at = self.begins_at, 0
        return self._iterate(first, self.begin_pass(first))

    def begin_pass(self, first: int) -> int:
        """Number of an iterator that begins at a step; the state follows it from now on."""
        self._step, self._pass = first, self._pass + 1
        self.workers_began[0] = False
        return self._pass

    def count(self, step: int, number: int) -> None:
        """Note the step of an iterator, unless a newer one has begun."""
        if number == self._pass:
            self._step = step

    def _iterate(self, first: int, number: int) -> Iterator[Batch]:
        batches = make_ahead(self.next_batch, first, len(self), ahead=self.prefetch)
        step = first
        for batch in batches:
            step += 1
            self.count(step, number)
            yield batch
            del batch  # its memory can be used for the next one

    def rows_of_step(self, step: int) -> BatchRows:
        """Rows of the global batch of a step, over all ranks."""
        return self.schedule.rows_of_step(operator.index(step))

    def occurrences_of(self, stage: int, source: int, rows: np.ndarray) -> Occurrences:
        """Steps and places in the global batch at which rows of a source occur in a stage."""
        return self.schedule.occurrences_of(stage, source, rows)

    def state_dict(self) -> dict[str, Any]:
        """Current state as JSON types: the step, and the sources and stages of the run.

        `selections` has, if documents are chosen, the settings of each source in words; they are not
        needed to resume, but name the difference from another run.

        Raises:
            RecipeError: worker processes of torch's `DataLoader` make the batches, ahead of the trainer.
        """
        if self.workers_began[0]:
            raise RecipeError(
                "a loader's state_dict: worker processes of a DataLoader make its batches, ahead of the "
                "trainer, so this process does not know how many were trained on",
                hint="LoaderDataset.state_after(n) is the state after the first n batches of its iteration; "
                "torchdata's StatefulDataLoader has a state_dict of its own",
            )
        return self.state_at(self._step)

    def state_at(self, step: int) -> dict[str, Any]:
        """State after the first `step` batches."""
        return save_state(self.schedule, step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state`: the next `iter(loader)` begins there.

        Stages that begin at the state's step or later may differ from those of the run that saved it.

        Raises:
            RecipeError: not a state, a state of a newer version, of a run with other data or settings before
                its step (reported by name), or beyond the end of this run.
        """
        self.begins_at = self.check(state)
        self.begin_pass(self.begins_at)

    def check(self, state: Mapping[str, Any]) -> int:
        """Step of a state, which must be one of this run; raises as `load_state_dict` does."""
        return check(self.schedule, state, len(self))[0]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_ahead"}

    def __repr__(self) -> str:
        left = f", {self.left_over_rows:,} rows left over" if self.left_over_rows else ""
        stages = "" if len(self.schedule.stages) == 1 else f" in {len(self.schedule.stages)} stages"
        sizes = " and ".join(f"{size:,}" for size in dict.fromkeys(self.schedule.sizes))
        traffic = self.traffic
        stalls = "" if traffic is None else f", {traffic.stalls:,} stalls of {traffic.stall_seconds:.1f} s"
        return (
            f"<Loader: step {self.step:,} of {len(self):,}{stages}, batches of {sizes} rows{left}, "
            f"rank {self.rank} of {self.world_size}, seed {self.seed}{stalls}>"
        )


def _stages(rows: Rows | Mixture | Stage | Sequence[Stage], epochs: int | None) -> list[Stage]:
    if isinstance(rows, Rows):
        return [Stage(Mixture([(rows, 1, epochs)]))]
    stages = [Stage(rows)] if isinstance(rows, Mixture) else [rows] if isinstance(rows, Stage) else rows
    if not isinstance(stages, list | tuple) or not all(isinstance(stage, Stage) for stage in stages):
        raise RecipeError(
            f"expected rows, a Mixture, a Stage or a list of stages, found {type(rows).__name__}",
            hint="rows of a store: packline.open(DIR).rows(seq_len=...)",
        )
    if epochs != 1:
        raise RecipeError(
            f"epochs={epochs!r} is for plain rows", hint="Mixture([(rows, weight, max_epochs), ...])"
        )
    return list(stages)


def chosen_fields(fields: Sequence[str] | None, keys: Keys) -> tuple[str, ...]:
    """Arrays to read, from the arguments of `Loader`.

    >>> chosen_fields(None, "huggingface")
    ('tokens', 'targets', 'position_ids')
    """
    if keys not in get_args(Keys):
        raise RecipeError(f"expected keys of {' or '.join(get_args(Keys))}, found {keys!r}")
    if fields is None:
        return ("tokens", "targets", "position_ids") if keys == "huggingface" else FIELDS
    if isinstance(fields, str) or not fields or not set(fields) <= set(ALL_FIELDS):
        raise RecipeError(f"expected fields of {', '.join(ALL_FIELDS)}, found {fields!r}")
    return tuple(fields)


def named(batch: Batch, keys: Keys) -> Batch:
    """Rename the fields of a batch according to `keys`.

    For Hugging Face, `labels[t]` is the token at t itself, since such models shift; int64, because their loss
    accepts no other dtype.

    >>> batch = {"tokens": np.array([[5, 6, 7]]), "targets": np.array([[6, 7, 8]], np.int32)}
    >>> {name: values.tolist() for name, values in named(batch, "huggingface").items()}
    {'input_ids': [[5, 6, 7]], 'labels': [[-100, 6, 7]]}
    >>> named(batch, "huggingface")["labels"].dtype.name
    'int64'
    """
    if keys == "packline":
        return batch
    renamed = {OWN_NAMES.get(name, name): values for name, values in batch.items()}
    if "targets" in batch:
        labels = np.empty(batch["targets"].shape, np.int64)
        labels[..., 0], labels[..., 1:] = IGNORED, batch["targets"][..., :-1]
        renamed["labels"] = labels
    return renamed
