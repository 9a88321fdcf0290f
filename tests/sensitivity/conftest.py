"""One thread for torch, since more are slower for tiny products and may sum them otherwise; a model and its file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sensitivity_helpers import compute, llama

from hubmerge.sensitivity.file import SensitivityFile


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("model") / "agent")


@pytest.fixture(scope="package")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SensitivityFile:
    """The file of a computation that nothing interrupted."""
    return compute(folder, tmp_path_factory.mktemp("made") / "s.safetensors")
