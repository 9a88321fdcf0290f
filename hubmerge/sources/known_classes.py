"""The model types and classes of the transformers version that this project pins, from a generated list.

    python -m hubmerge.sources.known_classes      writes known_classes.txt from the installed transformers

A merge runs without transformers. The list tells whether transformers can load a model without the repo's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

_LIST = Path(__file__).with_suffix(".txt")


@cache
def known_classes() -> Mapping[str, frozenset[str]]:
    """Model type → the classes that transformers' auto classes take for it."""
    lines = _LIST.read_text(encoding="utf-8").splitlines()
    return {model_type: frozenset(classes) for model_type, *classes in map(str.split, lines)}


def listed() -> str:
    """The content of the list, from the installed transformers."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    classes: dict[str, set[str]] = {model_type: set() for model_type in CONFIG_MAPPING_NAMES}
    for name, mapping in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for model_type, found in mapping.items():
                classes[model_type] |= {found} if isinstance(found, str) else set(found)
    return "".join(" ".join([model_type, *sorted(found)]) + "\n" for model_type, found in sorted(classes.items()))


if __name__ == "__main__":
    _LIST.write_text(listed(), encoding="utf-8")
