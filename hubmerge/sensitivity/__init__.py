"""Sensitivity: the diagonal Fisher of an agent on calibration pairs, in one streamed pass.

    S_j = E over (x, y) of (∂ log p(y|x; θ) / ∂θ_j)²        (SAR-Merging, arXiv:2606.18521, Eq. 13)

calibration → tokens → staging → names → gradients → sums → file. The expectation is over the pairs, which are the
data's own answers and not samples of the model: the paper's empirical Fisher. One pair is one backward pass, its
gradients are squared as they appear and added in float32, and the sums are divided by the number of pairs once.

Memory: one model, one gradient tensor (two where an embedding is tied to the head), the activations of one pair, and
some buffers of 16 MB; the sums lie in a mapped file. Deviations from the paper: S is computed everywhere and not in
the conflict region alone, so that one file serves every merge of the agent; the paper does not name the number of
pairs, nor whether the likelihood is the sum over tokens or their mean. Here it is the sum, EOS included.

Merge methods read such files through `read_sensitivity` and `check_sensitivity`; importing this package is cheap.
"""

from __future__ import annotations

from hubmerge.recipe.calibration import CalibrationSpec
from hubmerge.sensitivity.calibration import Pair, digest, load_pairs
from hubmerge.sensitivity.compute import compute_sensitivity
from hubmerge.sensitivity.file import SensitivityFile, SensitivityMetadata, check_sensitivity, read_sensitivity

__all__ = [
    "CalibrationSpec",
    "Pair",
    "SensitivityFile",
    "SensitivityMetadata",
    "check_sensitivity",
    "compute_sensitivity",
    "digest",
    "load_pairs",
    "read_sensitivity",
]
