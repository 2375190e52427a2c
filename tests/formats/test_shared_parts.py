"""Parts of an export that two processes write at the same time, as nodes that help each other do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.jobs.builds import build, digests

from packline.formats.choice import document_view
from packline.formats.export import ExportRunner, PartSettings, PartUnit
from packline.formats.export_folder import ExportIdentity, Staging
from packline.formats.format import convert_options, get_format
from packline.packing.options import ExportChoice
from packline.store.writer import HashedFile


def written(out: Path) -> dict[str, str]:
    """Checksums of the files that have their final names."""
    return {name: one for name, one in digests(out).items() if not name.startswith(".packline")}


@pytest.mark.parametrize("link", ["copy", "auto"])
@pytest.mark.parametrize("name", ["llmc", "megatron"])
def test_a_process_that_is_killed_leaves_the_files_of_another(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, name: str, link: str
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")
    store = build(tmp_path / "store", str(tmp_path / "in.txt"), tokenizer_json)
    format = get_format(name)
    options, choice = convert_options(format, {}), ExportChoice()
    given: dict[str, object] = {"format": name, "options": {}, "link": link}
    out = str(tmp_path / "out")
    settings = PartSettings(**given, source=str(store.path), choice=choice, out=out, shared=True)  # type: ignore[arg-type]
    parts = format.plan(
        document_view(str(store.path), "eod" if name == "megatron" else "bos", choice), options
    ).parts
    with Staging(tmp_path / "out") as staging:
        staging.begin(ExportIdentity(**given, source={}, settings={}), parts)  # type: ignore[arg-type]
        one, two = ExportRunner(settings), ExportRunner(settings)
        two._staging._own = "another"
        units = [PartUnit(name=part.name, number=number, part=part) for number, part in enumerate(parts)]
        for unit in units:
            one.commit(unit, next(one.run(unit, lambda tokens, documents=0, text_bytes=0: None)))
        whole = written(tmp_path / "out")
        assert whole

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(HashedFile, "write", killed)
            patch.setattr("packline.formats.export_folder.share_file", killed)
            for unit in units:
                with pytest.raises(KeyboardInterrupt):
                    next(two.run(unit, lambda tokens, documents=0, text_bytes=0: None))
        assert written(tmp_path / "out") == whole
        for unit in units:
            two.commit(unit, next(two.run(unit, lambda tokens, documents=0, text_bytes=0: None)))
        assert written(tmp_path / "out") == whole
