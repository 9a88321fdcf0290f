"""The README's front matter is one that the Hub takes and ZeroGPU runs, and agrees with what is pinned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from space_rules import ZERO_GPU_PYTHONS, ZERO_GPU_TORCHES, front_matter, problems

from localhub.users import default_users

ROOT = Path(__file__).resolve().parents[2]
SPACE = front_matter((ROOT / "README.md").read_text(encoding="utf-8"))


def _pin(package: str) -> str:
    found = re.search(rf"^{package}(?:\[.*\])?==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_the_hub_takes_the_front_matter() -> None:
    assert problems(SPACE) == []


def test_a_sign_in_of_the_demo_lasts_as_long_as_one_of_the_space() -> None:
    assert default_users().oauth.expiration_minutes == SPACE["hf_oauth_expiration_minutes"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("short_description", "Merge RL-trained agents, streaming, with a card that tells the truth"),
        ("emoji", "ram"),
        ("emoji", "🐏🐏"),
        ("colorFrom", "orange"),
        ("sdk", "podman"),
        ("python_version", 3.12),
        ("sdk_version", "latest"),
        ("suggested_hardware", "h9000"),
        ("startup_duration_timeout", "soon"),
        ("app_port", 7860),
        ("hf_oauth", "yes, please"),
        ("hf_oauth_scopes", ["read-everything"]),
        ("hf_oauth_expiration_minutes", 43_201),
        ("colour", "green"),
    ],
)
def test_a_value_that_the_hub_refuses_is_found(key: str, value: Any) -> None:
    assert key in [problem.split(":")[0] for problem in problems({**SPACE, key: value})]


def test_the_hub_takes_the_front_matter_of_the_docker_space_that_the_readme_describes() -> None:
    """`sdk: docker` and `app_port: 7860` in place of what a Gradio Space alone has."""
    gradios = ("sdk", "sdk_version", "python_version", "app_file")
    docker = {key: value for key, value in SPACE.items() if key not in gradios}
    assert problems({**docker, "sdk": "docker", "app_port": 7860}) == []


def test_a_gradio_space_runs_the_gradio_that_is_pinned() -> None:
    assert SPACE["sdk"] == "gradio"
    assert SPACE["sdk_version"] == _pin("gradio")
    assert (ROOT / SPACE["app_file"]).is_file()


def test_zero_gpu_has_the_python_and_the_torch_of_the_space() -> None:
    assert SPACE["python_version"] in ZERO_GPU_PYTHONS
    assert _pin("torch") in ZERO_GPU_TORCHES
