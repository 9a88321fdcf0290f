"""Tells faults of the machine (a full disk, kills, lack of time) apart from faults of the model."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hubmerge.errors import DiskError, HubmergeError, MachineFaultError
from hubmerge.plan.disk import shown_bytes, used_bytes
from hubmerge.sources.base import Model

_FAULT = "fault.json"  # how far a run got before the machine may have ended it
# of the disk, for datasets' rows, answers and the job database on the same disk: this, or a twentieth of a small one
RESERVE_BYTES = 2 * 10**9


def forget_faults(workdir: Path) -> None:
    """Forget earlier faults, since the run has ended for good; the next one has two tries again."""
    (workdir / _FAULT).unlink(missing_ok=True)


def clear_weights(workdir: Path) -> None:
    """Remove the fetched weights."""
    for name in ("model", "inputs"):
        shutil.rmtree(workdir / name, ignore_errors=True)


def require_room(model: Model, workdir: Path, what: str) -> None:
    """DiskError where the weights would leave less than the reserve; files fetched before take no further room."""
    if model.ref.kind != "hub":
        return
    there = used_bytes([workdir / "inputs"])
    disk = shutil.disk_usage(workdir)
    reserve = min(RESERVE_BYTES, disk.total // 20)
    missing = max(0, model.weight_bytes - there)
    if missing and missing + reserve > disk.free:
        clear_weights(workdir)
        needed, found, kept = shown_bytes(model.weight_bytes + reserve, disk.free + there, reserve)
        raise DiskError(
            "the model does not fit on this disk",
            where=what,
            expected=f"{needed} free, {kept} of it for everything else",
            got=found,
            next_step="Evaluate it on a machine with more disk.",
        )


@contextmanager
def cleared_where_the_disk_is_full(workdir: Path, what: str) -> Iterator[None]:
    """Remove this run's fetched weights if the disk fills up meanwhile."""
    try:
        yield
    except DiskError:
        clear_weights(workdir)
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        clear_weights(workdir)
        raise DiskError(
            "the disk is full", where=what, got=str(error.strerror), next_step="Free some disk and try again."
        ) from None


def try_once_more(error: HubmergeError, workdir: Path, what: str) -> None:
    """MachineFaultError, unless an earlier try of this run ended at the same place."""
    mark = workdir / _FAULT
    answers = workdir / "generations"
    done = sum(path.stat().st_size for path in answers.glob("*")) if answers.is_dir() else 0
    with suppress(OSError, ValueError):
        if done <= int(json.loads(mark.read_text())["done"]):
            return
    mark.write_text(json.dumps({"done": done}))
    raise MachineFaultError(
        "the machine ended the evaluation, which says nothing of the model yet",
        where=what,
        got=str(error).removeprefix(f"{error.code}: ").replace(str(workdir), "…")[:400],
        next_step="Run it again while nothing else runs here: it goes on, and ends for good if it comes no further.",
    )
