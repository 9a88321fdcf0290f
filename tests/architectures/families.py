"""The families of the sweep: transformers' folders, each with the class that it is known by."""

from __future__ import annotations

from sweep import Kind
from tiny import families
from tiny_exceptions import CHANGES, CLASSES, IGNORED, NOT_BUILT

__all__ = ["FAMILIES", "NOT_BUILT"]

FAMILIES = {
    family: Kind(model_type, CLASSES.get(family, name), task, CHANGES.get(family, {}), IGNORED.get(family, ()))
    for family, (model_type, name, task) in families().items()
}
