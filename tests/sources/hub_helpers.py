"""What the tests of sources share: how models are opened and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_helpers import opened

from hubmerge.errors import HubmergeError
from hubmerge.hub.client import Hub
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.base import Model
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader


def on_hub(hub: Hub, name: str) -> Model:
    return open_model(ModelName.parse(name), hub, allow_local=False)


def bytes_of(model: Model, name: str, store: LocalOrFetched) -> bytes:
    with TensorReader([model], store) as reader:
        stored = model.tensors[name]
        return reader.raw(0, stored, 0, stored.entry.elements).tobytes()


def refuse_folder(kind: type[HubmergeError], path: Path) -> str:
    with pytest.raises(kind) as caught:
        opened(path)
    assert type(caught.value) is kind
    return str(caught.value)
