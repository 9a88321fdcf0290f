"""The cores and the memory that control groups leave to a process, from made-up trees of files."""

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest

from hubmerge.__main__ import console
from hubmerge.cli.main import main
from hubmerge.machine import resources
from hubmerge.machine.resources import GroupLimits, group_limits


def told(folder: Path, own: str, files: Mapping[str, str]) -> GroupLimits:
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, content in {"proc/self/cgroup": own, **groups}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return group_limits(folder)


def test_a_group_of_version_2_is_limited_by_all_above_it(tmp_path):
    files = {
        "pod/job/cpu.max": "max 100000\n",
        "pod/job/memory.max": "3000000000\n",
        "pod/cpu.max": "250000 100000\n",
        "pod/memory.max": "2000000000\n",
        "cpu.max": "800000 100000\n",
        "other/memory.max": "1\n",
    }
    assert told(tmp_path, "0::/pod/job\n", files) == GroupLimits(3, 2_000_000_000)


def test_version_1_has_a_tree_for_each_controller(tmp_path):
    own = "4:memory:/docker/m\n3:cpu,cpuacct:/docker/c\n2:freezer:/\n1:name=systemd:/x\n0::/x\n"
    files = {
        "cpu,cpuacct/docker/c/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/docker/c/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/docker/cpu.cfs_quota_us": "150000\n",
        "cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/docker/m/cpu.cfs_quota_us": "1\n",
        "memory/docker/m/memory.limit_in_bytes": "512000000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert told(tmp_path, own, files) == GroupLimits(2, 512_000_000)


@pytest.mark.parametrize("own", ["0::/docker/a", "0::/", "0::/../../outside", "0::/../outside/a"])
def test_a_container_sees_its_own_group_where_its_tree_begins(own, tmp_path):
    """Whatever its name is, which may be told from another root."""
    files = {"cpu.max": "200000 100000", "memory.max": "1000000"}
    assert told(tmp_path, f"{own}\n", files) == GroupLimits(2, 1_000_000)


@pytest.mark.parametrize(
    "content", ["", "max", "max 100000", "-5 100000", "0 100000", "100000 0", "100000", "many cores", "9" * 5000 + " 1"]
)
def test_what_cannot_be_understood_limits_nothing(content, tmp_path):
    files = {"cpu.max": content, "memory.max": "²" if content else "\n"}
    assert told(tmp_path, "0::/\n", files) == GroupLimits()


def test_what_cannot_be_read_limits_nothing(tmp_path):
    assert group_limits(tmp_path) == GroupLimits()
    assert told(tmp_path, "0::/gone\nnonsense\n::\n", {}) == GroupLimits()
    (tmp_path / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_bytes(b"\xff\xfe")
    assert group_limits(tmp_path) == GroupLimits()


def test_threads_follow_what_the_process_may_use(monkeypatch):
    cores, memory_bytes = resources.cores.__wrapped__, resources.memory_bytes.__wrapped__  # what is kept stays
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(resources, "group_limits", lambda: GroupLimits(3, 2**20))
    assert (cores(), memory_bytes()) == (3, 2**20)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(resources, "group_limits", lambda: GroupLimits(3, 2**60))
    assert cores() == 2
    assert 2**20 < (memory_bytes() or 0) < 2**60


@pytest.mark.parametrize(
    ("prints", "known"),
    [
        ("echo 24564", 24564 * 2**20),
        ("echo 81559; echo 24564", 24564 * 2**20),
        ("echo '[N/A]'", None),
        ("echo 24564; exit 9", None),
        (None, None),
    ],
)
def test_a_gpu_s_memory_is_what_its_driver_s_tool_says(tmp_path, monkeypatch, prints, known):
    if prints is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{prints}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resources.gpu_memory_bytes.__wrapped__() == known


@pytest.mark.parametrize("command", [["demo"], ["serve"], ["watch", "rule.yaml"]])
def test_the_app_and_the_bot_need_linux_and_elsewhere_say_what_works_there(command, monkeypatch, capsys):
    for module in ("workflows.demo", "workflows.serve", "workflows.watch"):
        importlib.import_module(module)
    monkeypatch.setattr("sys.platform", "darwin")
    with patch.dict(os.environ):  # which the demo changes
        assert main(command) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert re.search("E_SETTINGS.*runs on Linux alone: got darwin.*merging.*work here, too", told)


def test_windows_is_told_of_wsl_before_anything_is_imported(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SystemExit, match=r"E_SETTINGS: Windows has no file locks.*WSL"):
        console()


def test_controllers_of_one_tree_are_found_in_whatever_order_they_are_told(tmp_path):
    """RHEL 7 tells of `cpuacct,cpu`; the folder is `cpu,cpuacct`, and `cpu` a link to it."""
    files = {"cpu/a..b/cpu.cfs_quota_us": "150000\n", "cpu/a..b/cpu.cfs_period_us": "100000\n"}
    assert told(tmp_path, "4:cpuacct,cpu:/a..b\n", files) == GroupLimits(2, None)


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1), ("100001 100000", 2)])
def test_a_part_of_a_core_is_one(quota, cores, tmp_path):
    assert told(tmp_path, "0::/\n", {"cpu.max": quota}).cores == cores


def test_the_kernel_s_count_of_processes_ended_for_memory_is_read_where_there_is_one():
    counted = resources.oom_kills()
    lines = Path("/proc/vmstat").read_text() if Path("/proc/vmstat").is_file() else ""
    assert (counted is None) == ("oom_kill " not in lines)
    assert counted is None or counted >= 0
