"""Which jobs get the key that results are signed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from job_helpers import QUICK, new_job
from pydantic import SecretStr

from hubmerge.settings import Settings
from workflows.jobs import worker as worker_module
from workflows.jobs.protocol import JobSpec
from workflows.jobs.results_keys import results_keys
from workflows.jobs.store import Store
from workflows.jobs.tokens import TokenVault
from workflows.jobs.worker import PIPELINES, Worker


@pytest.mark.parametrize("kind", PIPELINES)
def test_only_an_evaluation_gets_the_signing_key(
    kind: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[JobSpec] = []

    def refuse(command: Any, document: bytes, *rest: Any, **options: Any) -> None:
        told.append(JobSpec.model_validate_json(document))
        raise OSError("no process today")

    monkeypatch.setattr(worker_module, "ChildProcess", refuse)
    settings = Settings(data_dir=tmp_path, secret=SecretStr("a long random string"))
    worker = Worker(settings, store, TokenVault.from_settings(settings), timing=QUICK)
    store.submit(new_job("one", kind=kind))
    worker.run_once()
    worker.close()
    [spec] = told
    keys = results_keys(settings)
    given = spec.signing_key.get_secret_value() if spec.signing_key else None
    expected = (keys.seed.hex(), tuple(keys.trust.keys)) if kind == "evaluate" else (None, ())
    assert (given, spec.trusted_keys) == expected
