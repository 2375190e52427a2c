"""Values in a notebook: what renders them is loaded for the first one, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture
from packline.notebook import Notebook
from packline.packing.row import Row
from packline.packing.rows import Rows
from packline.testing import make_store
from packline.viewing import view

SCRIPT = """
import sys
import packline
store = packline.open(sys.argv[1])
store.rows(4), store.documents[0]
assert not [name for name in sys.modules if name.startswith("packline.viewing")]
assert "notebook" in store._repr_html_()
assert "packline.viewing.view" in sys.modules
"""


@pytest.mark.parametrize("kind", [Store, Rows, Row, Loader, Mixture])
def test_every_value_for_notebooks_has_a_page(kind: type) -> None:
    assert issubclass(kind, Notebook)
    assert view.page_of.dispatch(kind) is not view.page_of.dispatch(object)


def test_a_value_without_a_page_is_refused() -> None:
    with pytest.raises(TypeError, match="no page for Notebook"):
        Notebook()._repr_html_()


def test_rendering_is_loaded_by_the_first_value_that_is_shown(tmp_path: Path) -> None:
    make_store(tmp_path / "store", [[9, 9]])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
