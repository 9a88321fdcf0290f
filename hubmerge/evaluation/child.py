"""The second child: lighteval on a model, with no token, no network and its own limits.

    python -m hubmerge.evaluation.child

The process is confined before it touches anything heavy or foreign. lighteval is imported only here, since it turns
gradients off for the whole process, takes SIGALRM for itself and takes more than ten seconds to import.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hubmerge.isolation.confinement import Limits, confine, give_way
from hubmerge.isolation.in_child import Reporter, run

_MAX_FILE_BYTES = 16 * 10**9  # journals and details; the model is read, not written
_MAX_PROCESSES = 4096  # of the user, threads included


def evaluate(spec: Mapping[str, Any], reporter: Reporter) -> Mapping[str, Any]:
    """Evaluate the model of the spec; see `hubmerge.evaluation.runner`."""
    confine_child(spec)
    os.chdir(spec["workdir"])
    reporter.stage("start lighteval")
    import torch

    from hubmerge.evaluation import models, pipeline

    torch.manual_seed(0)
    reporter.stage("load model")
    spec = models.with_fitting_dtype(spec)
    model = models.load_model(spec)
    dtype = str(getattr(getattr(model, "model", None), "dtype", spec["dtype"])).removeprefix("torch.")
    budget = models.batch_tokens(model, spec)
    line = pipeline.JournaledPipeline(model, {**spec, "batch_tokens": budget}, reporter)
    samples = line.scored()
    tasks = []
    for task in spec["tasks"]:
        value, stderr = pipeline.mean(samples[task["name"]])
        pipeline.write_details(Path(spec["details"]), task["name"], samples[task["name"]])
        told = {"value": value, "stderr": stderr, "samples": len(samples[task["name"]])}
        tasks.append({"task": task["name"], **told, "truncated": line.truncated[task["name"]]})
    return {"tasks": tasks, "dtype": dtype, "device": models.hardware(spec["device"]), "batch_tokens": budget}


def confine_child(spec: Mapping[str, Any]) -> None:
    """Give up the network and take on the limits of the spec."""
    give_way()
    on_gpu = spec["device"] == "cuda"
    confine(
        Limits(
            cpu_s=spec["cpu_s"],
            data_bytes=None if on_gpu else spec["memory_bytes"],  # CUDA reserves far more than it uses
            file_bytes=_MAX_FILE_BYTES,
            processes=_MAX_PROCESSES,
        ),
        network=False,
    )


if __name__ == "__main__":
    sys.exit(run(evaluate))
