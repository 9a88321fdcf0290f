"""The merge pipeline's events: figures are limited in rate, but the last ones of a stage always arrive."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from builders import random_base, sparse_agent, write_model
from huggingface_hub import HfApi
from job_helpers import job_spec
from pydantic import SecretStr

from hubmerge import line
from hubmerge.errors import SettingsError
from hubmerge.settings import load_settings
from localhub.process import LocalHubProcess
from workflows.jobs import pipeline
from workflows.jobs.pipeline import StageEmitter
from workflows.jobs.protocol import Event, Progress, Result, StageStarted, Statistics


def test_the_last_statistics_before_the_next_stage_are_never_dropped() -> None:
    events: list[Event] = []
    emitter = StageEmitter(events.append)
    emitter.stage("merge")
    for elements in (10, 20, 30):  # faster than the limit
        emitter.statistics({"elements": elements})
    emitter.stage("card")
    told = [e.values["elements"] for e in events if isinstance(e, Statistics)]
    assert told == [10, 30]
    assert isinstance(events[-1], StageStarted)
    emitter.stage("publish")
    assert len([e for e in events if isinstance(e, Statistics)]) == 2


def test_throughput_is_measured_within_a_stage() -> None:
    events: list[Event] = []
    emitter = StageEmitter(events.append)
    emitter.progress("fetch", 5, 10, "B")
    emitter.progress("fetch", 10, 10, "B")
    emitter.progress("merge", 0, 7, "elements")
    fetched, again, merged = (e for e in events if isinstance(e, Progress))
    assert (fetched.done, again.done, merged.done) == (5, 10, 0)
    assert again.per_second is not None
    assert again.per_second > 0


def test_the_result_says_where_it_is_and_what_it_took(local_hub: LocalHubProcess, tmp_path: Path) -> None:
    api = HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    base = random_base(11)
    for number, tensors in enumerate((base, sparse_agent(base, 0.2, 1), sparse_agent(base, 0.3, 2))):
        write_model(tmp_path / str(number), tensors)
        api.create_repo(f"ada/pipeline-{number}")
        api.upload_folder(repo_id=f"ada/pipeline-{number}", folder_path=tmp_path / str(number))
    recipe = {"base": "ada/pipeline-0", "agents": ["ada/pipeline-1", "ada/pipeline-2"], "method": "linear"}
    spec = job_spec(
        tmp_path,
        payload={"target": "ada/pipeline-merged", "private": False, "recipe": recipe, "license": "mit"},
        token=SecretStr(local_hub.tokens["ada"]),
        endpoint=local_hub.endpoint,
    )
    events: list[Event] = []
    with patch.object(line, "render_figures", lambda report: {}):
        pipeline.run(spec, events.append)
    assert isinstance(events[-1], Result)
    values = events[-1].values
    assert (values["repo"], values["commit"]) == ("ada/pipeline-merged", api.model_info("ada/pipeline-merged").sha)
    fetched = sum((tmp_path / str(number) / "model.safetensors").stat().st_size for number in range(3))
    merged = api.model_info("ada/pipeline-merged", files_metadata=True)
    shards = [s.lfs.sha256 for s in merged.siblings or () if s.lfs and s.rfilename.endswith(".safetensors")]
    assert values["weights"] == shards != []
    assert values["run"]["fetch"]["bytes"] == fetched
    assert values["run"]["disk_high_water_bytes"] > fetched
    assert values["run"]["seconds"] > 0


def test_a_job_takes_the_machines_gpu_unless_one_is_lent_per_call() -> None:
    settings = load_settings({"HUBMERGE_DEVICE_MEMORY": "8.5"})
    own = pipeline.stream_options(settings)
    assert (own.device, own.device_memory_bytes) == ("auto", 8_500_000_000)
    lent = pipeline.stream_options(load_settings({"SPACES_ZERO_GPU": "true"}))
    assert (lent.device, lent.device_memory_bytes, lent.bursts) == ("cpu", 0, True)
    for wrong in ("0", "nan", "many"):
        with pytest.raises(SettingsError, match="HUBMERGE_DEVICE_MEMORY"):
            load_settings({"HUBMERGE_DEVICE_MEMORY": wrong})
