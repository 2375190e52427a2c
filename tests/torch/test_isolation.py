"""Isolation, for real: a transformer cannot tell a packed row from its documents read one by one.

The reference reads documents from the store, cuts them where spans say, and works out targets by hand
from the list of documents; rows give it nothing but the spans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the optional torch is not installed")

from tests.torch import transformer  # noqa: E402

from packline.facade import Store  # noqa: E402
from packline.packing.row import RowSpan  # noqa: E402
from packline.testing import make_store  # noqa: E402
from packline.torch import to_tensors  # noqa: E402

LENGTH, VOCAB = 48, 211
TOLERANCE = 1e-9

# Short ones that share a row, one as long as a row, one token alone, and some that are cut once or twice.
LENGTHS = [[9, 1, 30, 14, 48, 3, 121, 5], [22, 70, 11, 2, 26, 17, 8, 40]]

PACKINGS: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "best_fit"},
    {"packing": "pad", "overflow": "split"},
    {"packing": "pad", "overflow": "truncate"},
    {"packing": "concat", "shuffle_documents": 3},
]
ATTENTIONS = {"sdpa": transformer.sdpa, "flex": transformer.flex, "varlen": transformer.varlen}

pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*:UserWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("isolation") / "store", LENGTHS, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def model() -> transformer.Transformer:
    return transformer.Transformer(VOCAB, LENGTH)


def name(settings: dict[str, Any]) -> str:
    return "-".join(map(str, settings.values()))


def next_tokens(
    store: Store, spans: tuple[RowSpan, ...], number: int, boundary_loss: bool, after: int | None
) -> list[int]:
    """The targets of span `number` of a row, from the documents alone; `after` is what follows the row."""
    number_of_document, start, count = spans[number]
    document = store.documents[number_of_document].tolist()
    targets = document[start + 1 : start + 1 + count]
    if len(targets) == count:
        return targets
    following = -100
    if boundary_loss and number + 1 < len(spans):
        behind = spans[number + 1]
        following = int(store.documents[behind.document][behind.start])
    elif boundary_loss and after is not None:
        following = int(store.documents[after][0])
    return [*targets, following]


def first_document_after(rows: Any, row: int, settings: dict[str, Any]) -> int | None:
    """The first document of the row behind: only rows of concat follow one another."""
    if settings["packing"] != "concat" or row + 1 >= len(rows):
        return None
    behind = rows.spans(np.array([row + 1]))
    return int(behind.documents[0]) if behind.starts[0] == 0 else None


@torch.no_grad()  # flex attention has no backward pass on CPU
@pytest.mark.parametrize("settings", PACKINGS, ids=name)
def test_a_packed_row_is_its_documents_alone(
    store: Store, model: transformer.Transformer, settings: dict[str, Any]
) -> None:
    rows = store.rows(seq_len=LENGTH, **settings)
    every = np.arange(len(rows))
    batch = to_tensors(rows.read(every))
    boundaries = to_tensors(store.rows(seq_len=LENGTH, boundary_loss=True, **settings).read(every))["targets"]
    logits = {
        name: model(batch["tokens"], batch["position_ids"], attend(batch["segment_ids"]))
        for name, attend in ATTENTIONS.items()
    }
    compared = 0
    expected = {False: torch.full_like(boundaries, -100), True: torch.full_like(boundaries, -100)}
    for row in range(len(rows)):
        inside, place = rows[row].spans, 0
        after = first_document_after(rows, row, settings)
        for number, (document, start, count) in enumerate(inside):
            here = slice(place, place + count)
            alone = model.alone(store.documents[document][start : start + count].tolist())
            for found in logits.values():
                assert (found[row, here] - alone).abs().max() < TOLERANCE
            for boundary_loss, targets in expected.items():
                targets[row, here] = torch.tensor(next_tokens(store, inside, number, boundary_loss, after))
            compared, place = compared + count, place + count
    # All that was promised was looked at, and nothing else carries loss.
    assert compared == rows.counts.rows * LENGTH - rows.counts.padding_tokens
    assert torch.equal(batch["targets"], expected[False]) and torch.equal(boundaries, expected[True])
    assert (expected[True] != -100).sum() > 0


@pytest.mark.parametrize("settings", PACKINGS[:2], ids=name)
def test_without_the_mask_or_the_positions_it_differs(
    store: Store, model: transformer.Transformer, settings: dict[str, Any]
) -> None:
    """The test above would notice a mask that lets one document see another, or positions that go on."""
    rows = store.rows(seq_len=LENGTH, **settings)
    batch = to_tensors(rows.read(np.arange(len(rows))))
    tokens, positions, segments = (batch[key] for key in ("tokens", "position_ids", "segment_ids"))
    right = model(tokens, positions, transformer.sdpa(segments))
    beyond = segments > 0  # behind a row's first document
    assert beyond.any()

    unmasked = model(tokens, positions, transformer.causal(segments))
    continued = model(tokens, torch.arange(LENGTH).expand_as(tokens), transformer.sdpa(segments))
    for wrong in (unmasked, continued):
        difference = (wrong - right).abs().amax(-1)
        assert difference[beyond].min() > 1e-3  # at every place, not only somewhere
        assert difference[segments == 0].max() < TOLERANCE

    merged = segments.clone()
    merged[segments == 1] = 0  # one boundary missing is enough
    slipped = model(tokens, positions, transformer.sdpa(merged))
    assert (slipped - right).abs().amax(-1)[segments == 1].min() > 1e-3


@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
def test_gradients_too_stay_within_a_document(
    store: Store, model: transformer.Transformer, attention: str
) -> None:
    """The loss of one document does not depend on the embedding of any token of another."""
    rows = store.rows(seq_len=LENGTH, packing="concat")
    batch = to_tensors(rows.read(np.arange(len(rows))))
    segments = batch["segment_ids"]
    row = int((segments == 1).sum(1).argmax())
    embedded: list[Any] = []

    def keep(_module: Any, _given: Any, out: Any) -> Any:
        embedded.append(out.detach().requires_grad_())
        return embedded[-1]

    hook = model.tokens.register_forward_hook(keep)
    try:
        attend = ATTENTIONS[attention](segments)
        losses = transformer.losses(model(batch["tokens"], batch["position_ids"], attend), batch["targets"])
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(losses[row][segments[row] == 1].sum(), embedded)
    touched = gradient.abs().sum(-1) > 0
    assert touched[row][segments[row] == 1].sum() > 2
    assert not touched[row][segments[row] != 1].any()
    assert not touched[torch.arange(len(touched)) != row].any()
