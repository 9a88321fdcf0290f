"""Every architecture that transformers builds from a configuration merges, loads and computes what its base would."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from architectures_page import PAGE, as_row, page, recorded
from sweep import FAMILIES, built, swept
from tiny_exceptions import NOT_BUILT
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

BATCHES = 30
SWEPT = [family for family in FAMILIES if family not in NOT_BUILT]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", autouse=True)
def without_progress_bars() -> Iterator[None]:
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    yield
    if shown:
        enable_progress_bar()


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_architecture_merges_loads_and_computes_the_same(batch, tmp_path):
    known = recorded()
    wrong = {}
    for family in SWEPT[batch::BATCHES]:
        folder = tmp_path / family
        try:
            found = (FAMILIES[family].name, as_row(swept(FAMILIES[family], folder)))
            if found != known.get(family):
                wrong[family] = f"{found}, but the page says {known.get(family)}"
        except Exception as error:
            wrong[family] = f"{type(error).__name__}: {error}"[:500]
        shutil.rmtree(folder, ignore_errors=True)
    assert wrong == {}


def test_the_page_lists_every_family_once_and_is_as_it_would_be_written():
    import transformers

    rows = recorded()
    assert rows.keys() == FAMILIES.keys()
    assert {f: why for f, (_, why) in rows.items() if not why.startswith("yes")} == NOT_BUILT
    assert len(rows) - len(NOT_BUILT) > 450
    assert PAGE.read_text(encoding="utf-8") == page(rows, transformers.__version__)


@pytest.mark.parametrize("family", NOT_BUILT)
def test_what_is_listed_as_not_built_is_still_not(family, tmp_path):
    """So that the list cannot silently grow, nor stay when a newer transformers builds more."""
    reason = NOT_BUILT[family]
    package, _, more = reason.removeprefix("needs ").partition("; ")
    if reason.startswith("needs ") and find_spec(package):
        if more:
            pytest.skip(more)
        swept(FAMILIES[family], tmp_path)
    elif reason.startswith("too large"):
        with torch.device("meta"):
            assert sum(p.numel() for p in built(FAMILIES[family]).parameters()) > 15_000_000
    else:
        with pytest.raises(Exception) as caught:
            built(FAMILIES[family])
        if reason.startswith("needs "):
            assert isinstance(caught.value, ImportError)
