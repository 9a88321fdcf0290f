"""Lets the real `spaces` package work where torch has no CUDA; imported by every Python that has this on its path.

With REAL_SPACES=device the worker that the package forks takes torch's CPU as its device.
"""

import os


def patch() -> None:
    import torch

    if torch.version.cuda is None:  # a CPU wheel lacks what the package reads and patches
        torch.version.cuda = "13.0"
        torch._C._cuda_init = bool
        torch.cuda._is_in_bad_fork = bool
    torch.set_num_threads(1)  # other threads would not be there after the fork
    if os.environ.get("REAL_SPACES") == "device":
        import spaces.zero.torch

        spaces.zero.torch.init = _take_the_cpu
        spaces.zero.torch.move = lambda callback: None


def _take_the_cpu(uuid: str) -> None:
    import torch

    from hubmerge.engine import device

    here = torch.device("cpu")
    device._place = lambda local_rank: here


if os.environ.get("SPACES_ZERO_GPU"):
    patch()
