"""`check_packing` on a small transformer of our own: right masks pass, wrong ones do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the optional torch is not installed")

from tests.torch import transformer  # noqa: E402
from torch import nn  # noqa: E402

from packline.errors import MixedDocuments, RecipeError  # noqa: E402
from packline.facade import Store  # noqa: E402
from packline.loading.loader import Loader  # noqa: E402
from packline.testing import make_store  # noqa: E402
from packline.torch import check_packing, to_tensors  # noqa: E402

LENGTH, VOCAB = 48, 211
LENGTHS = [[9, 1, 30, 14, 48, 3, 121, 5], [22, 70, 11, 2, 26, 17, 8, 40]]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Rows of several documents, the last with padding."""
    store = make_store(tmp_path_factory.mktemp("check") / "store", LENGTHS, vocab_size=VOCAB)
    rows = store.rows(LENGTH, min_tail_fraction=0)
    found = rows.read(np.array([0, 2, len(rows) - 1]))
    assert (found["segment_ids"] == -1).any()
    return found


class Model(nn.Module):  # type: ignore[misc]
    """Attention within segments, or with `mixing` over the whole row."""

    def __init__(self, mixing: bool = False) -> None:
        super().__init__()
        self.inner = transformer.Transformer(VOCAB, 256)
        self.dropout = nn.Dropout(0.5)
        self.mixing = mixing
        self.seen: list[set[str]] = []

    def forward(self, tokens: Any, position_ids: Any, segment_ids: Any, **more: Any) -> Any:
        self.seen.append(set(more))
        mask = torch.zeros_like(segment_ids) if self.mixing else segment_ids
        return self.dropout(self.inner(tokens, position_ids, transformer.sdpa(mask)))


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16"])
def test_documents_apart_pass_and_mixed_ones_do_not(batch: dict[str, Any], kind: str) -> None:
    right = Model().to(getattr(torch, kind))
    assert check_packing(right, batch) < {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.05}[kind]
    with pytest.raises(MixedDocuments, match=r"row 0, document 1 \(places 9 to 10\)") as caught:
        check_packing(Model(mixing=True).to(getattr(torch, kind)), batch)
    assert "segment_ids" in caught.value.hint


def test_a_model_comes_back_as_it_was(batch: dict[str, Any]) -> None:
    model = Model().train()
    model.inner.eval()  # a frozen part
    modes = [part.training for part in model.modules()]
    many: list[dict[str, Any]] = [{}, {"tolerance": -1.0}]
    for settings in many:
        try:
            check_packing(model, batch, **settings)
        except MixedDocuments:
            assert settings
        assert [part.training for part in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {frozenset(names) for names in model.seen} == {frozenset()}  # no targets


def test_settings_and_arrays_of_other_shapes_are_handed_on(batch: dict[str, Any]) -> None:
    model = Model()
    check_packing(model, {**batch, "cu_seqlens": np.array([0, 5])}, scale=3)
    assert model.seen[0] == {"cu_seqlens", "scale"}
    assert {frozenset(names) for names in model.seen[1:]} == {frozenset({"scale"})}  # documents alone


def test_positions_that_restart_tell_documents_where_there_are_no_segments(batch: dict[str, Any]) -> None:
    def model(tokens: Any, position_ids: Any, mixing: bool = False) -> Any:
        begins = torch.zeros_like(position_ids)
        begins[:, 1:] = position_ids[:, 1:] == 0
        segments = torch.zeros_like(begins) if mixing else begins.cumsum(1)
        return inner(tokens, position_ids, transformer.sdpa(segments))

    inner = transformer.Transformer(VOCAB, LENGTH)
    given = to_tensors({name: batch[name] for name in ("tokens", "position_ids", "targets")})
    assert check_packing(model, given) < 1e-9
    with pytest.raises(MixedDocuments):
        check_packing(model, given, mixing=True)


def test_logits_that_are_no_numbers_are_not_called_equal(batch: dict[str, Any]) -> None:
    with pytest.raises(MixedDocuments, match="difference of inf"):
        check_packing(lambda tokens, **_: torch.full((*tokens.shape, 5), float("nan")), batch)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        (("tokens", "targets"), "expected position_ids or segment_ids"),
        ((), "found an empty batch"),
    ],
)
def test_a_batch_that_does_not_say_where_documents_are_is_refused(
    batch: dict[str, Any], fields: tuple[str, ...], match: str
) -> None:
    with pytest.raises(RecipeError, match=match):
        check_packing(Model(), {name: batch[name] for name in fields})


def test_rows_of_one_document_prove_nothing(batch: dict[str, Any]) -> None:
    one = {name: values[:, :9] for name, values in batch.items()}
    one = {name: values[:1] for name, values in one.items()}
    with pytest.raises(RecipeError, match="a row of two documents or more"):
        check_packing(Model(), one)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Documents that fill many rows each: few rows hold the end of one and the beginning of another."""
    return make_store(tmp_path_factory.mktemp("long") / "store", [[48 * 70 + 5] * 30], vocab_size=VOCAB)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_row_that_can_be_checked_is_found_among_long_documents(long: Store, packing: Any) -> None:
    rows = long.rows(LENGTH, packing=packing)
    loader = Loader(rows, batch_size=8, seed=1)
    with pytest.raises(RecipeError, match="a row of two documents or more") as caught:
        check_packing(Model(), loader.batch(0))
    assert "give the loader" in (caught.value.hint or "")
    for given in (loader, rows, long):
        assert check_packing(Model().double(), given) < 1e-12
        with pytest.raises(MixedDocuments, match="documents of a row see each other"):
            check_packing(Model(mixing=True).double(), given)
    assert loader.step == 0


def test_rows_found_have_the_names_of_the_trainer(long: Store) -> None:
    def model(input_ids: Any, position_ids: Any) -> Any:
        return torch.eye(VOCAB)[input_ids.long()]

    rows = long.rows(LENGTH)
    loader = Loader(rows, batch_size=8, keys="huggingface")
    assert check_packing(model, loader) == 0
    assert (
        check_packing(model, rows, keys="huggingface") == check_packing(model, long, keys="huggingface") == 0
    )
    with pytest.raises(RecipeError, match="expected position_ids or segment_ids"):
        check_packing(model, Loader(rows, batch_size=8, fields=("tokens",)))


def test_rows_of_one_document_each_have_nothing_to_find(long: Store) -> None:
    with pytest.raises(RecipeError, match="two documents or more, found none") as caught:
        check_packing(Model(), long.rows(LENGTH, packing="pad"))
    assert "nothing to isolate" in (caught.value.hint or "")
