"""Sensitivity: the diagonal Fisher of an agent on calibration pairs, in one streamed pass.

    S_j = E over (x, y) of (∂ log p(y|x; θ) / ∂θ_j)²        (SAR-Merging, arXiv:2606.18521, Eq. 13)

`pairs` are the data, as texts and as tokens; `network` takes gradients and knows the checkpoint's names; `compute` adds
squares up and writes a `file`. `rows` reads the data when a merge is prepared, and `of_plan` gives every agent of a
merge its file. The last two import torch only when something has to be computed.

The expectation is over the pairs, which are the data's own answers and not samples of the model: the paper's empirical
Fisher. One pair is one backward pass, its gradients are squared as they appear and added in float32, and the sums are
divided by the number of pairs once.

Memory: one model, one gradient tensor (two where an embedding is tied to the head), the activations of one pair, and
some buffers of 16 MB; the sums lie in a mapped file. Deviations from the paper: S is computed everywhere and not in
the conflict region alone, so that one file serves every merge of the agent; the paper does not name the number of
pairs, nor whether the likelihood is the sum over tokens or their mean. Here it is the sum, EOS included.
"""
