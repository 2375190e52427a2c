"""`packline.testing`: what its strategies make is what packline accepts."""

from __future__ import annotations

from hypothesis import given, settings

from packline import testing


@settings(max_examples=20)
@given(testing.store_shapes())
def test_every_store_is_verified(shape: testing.StoreShape) -> None:
    with shape.opened() as store:
        report = store.verify()
        assert report.ok, report.problems
        lengths = [length for shard in shape.lengths for length in shard]
        assert [len(document) for document in store.documents] == lengths
        for number, length in enumerate(lengths):
            assert store.documents[number].tolist() == testing.document_tokens(
                number, length, store.manifest.tokenizer.vocab_size
            )
