"""A kept template is the one that would be compiled: nothing stale or torn is run, nothing fails without it."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from hubmerge.kept_templates import KeptTemplates


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text("one")
    return path


def compiled(module: Path, folder: Path, source: str) -> tuple[str, int]:
    """What the template gives, and how often it was compiled."""
    count = 0

    class Environment(jinja2.Environment):
        def compile(self, *args, **named):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            return super().compile(*args, **named)

    made = Environment(loader=jinja2.DictLoader({"a": source}), bytecode_cache=KeptTemplates([module], folder))
    return made.get_template("a").render(x=3), count


def test_a_template_is_compiled_once(module: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert compiled(module, folder, "x{{ x }}") == ("x3", 1)
    assert compiled(module, folder, "x{{ x }}") == ("x3", 0)


def test_another_source_or_module_is_compiled_anew_and_replaces_the_old(module: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    compiled(module, folder, "x{{ x }}")
    assert compiled(module, folder, "y{{ x }}") == ("y3", 1)
    module.write_text("two")
    assert compiled(module, folder, "y{{ x }}") == ("y3", 1)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"?" + b[41:], lambda b: b * 2])
def test_a_damaged_file_is_not_read(module: Path, tmp_path: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "cache"
    compiled(module, folder, "x{{ x }}")
    [kept] = folder.iterdir()
    kept.write_bytes(spoil(kept.read_bytes()))
    assert compiled(module, folder, "x{{ x }}") == ("x3", 1)
    assert compiled(module, folder, "x{{ x }}") == ("x3", 0)


def test_a_folder_that_takes_nothing_only_costs_time(module: Path) -> None:
    for _ in range(2):
        assert compiled(module, module / "cache", "x{{ x }}") == ("x3", 1)
