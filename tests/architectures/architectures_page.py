"""docs/architectures.md: what becomes of every architecture, written from a sweep.

python tests/architectures/architectures_page.py          writes the page, in some minutes
python tests/architectures/architectures_page.py llama    measures these families anew
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
COMPARED = "configuration, modules, weights"  # where no inputs were found

_INTRODUCTION = """# Architectures

<!-- written by tests/architectures/architectures_page.py, which the tests hold against a sweep -->

A merge keeps everything that `config.json` says, but for what names code or a place to load something from, so it works
for any architecture that `transformers` builds from a configuration. The table is a test of that: {count} families of
transformers {version}. Each is built small with random weights, saved by `save_pretrained` in several shards, two
agents are made of it, and `hubmerge` merges them into a folder. The result is loaded by its class, without missing or
unexpected tensors, and gives bit for bit what the same weights give under the base's own `config.json`, for the inputs
named. Where no inputs were found that a model of that size takes, configuration, modules and weights are compared.

Language models are merged in bfloat16, the others in float32.
"""
_REFUSED = """
## What is refused, and why

Before anything is fetched, with `E_INCOMPATIBLE`:

| config.json of the base | why |
|---|---|
| `auto_map` for a model type or class that transformers does not have | its code is not carried over |
| `quantization_config`, `compression_config`, `quantization`, also of a part | but for fp8, numbers stand for others |
| `configuration_files`, `transformers_weights` | they point to other files than those that were read |
| `backbone` without a `backbone_config` | transformers would look it up on the Hub |
| tensors of float64 | they are not merged; `ignore` keeps the base's |

## What is left out, and told

At any depth, in every JSON file of the result: `auto_map`, `custom_pipelines`, `custom_generate`, `trust_remote_code`,
`attribute_map`, `gguf_file`, `init_inputs`, `audio_tokenizer`; keys with `implementation` in them; keys with `_` in
front but for those that transformers computes with; text under keys that name a file, folder, address or repo; and text
that reads as `repo--module.Class`, a path or an address. Labels, tokens, letters, templates and prompts are text,
whatever they read like. `auto_map` beside a class that transformers has is left out, and that class is loaded. A kernel
for attention is chosen where a model is loaded (`attn_implementation=`).
"""
_ROW = re.compile(r"\| `(\w+)` \| `(\w+)` \| (.*) \|")


def recorded() -> dict[str, tuple[str, str]]:
    """Family → class, and the last column of the page's tables."""
    return {m[1]: (m[2], m[3]) for m in map(_ROW.fullmatch, PAGE.read_text(encoding="utf-8").splitlines()) if m}


def as_row(compared: str) -> str:
    inputs = ", ".join(f"`{name}`" for name in compared.split(", ")) if compared else COMPARED
    return f"yes | yes | {inputs}"


def page(rows: dict[str, tuple[str, str]], version: str) -> str:
    built = {f: row for f, row in rows.items() if row[1].startswith("yes")}
    others = {f: row for f, row in rows.items() if f not in built}
    lines = [
        _INTRODUCTION.format(count=len(built), version=version),
        "| family | class | merged | loaded | same outputs for |",
        "|---|---|---|---|---|",
        *(f"| `{family}` | `{name}` | {result} |" for family, (name, result) in sorted(built.items())),
        "\n## Not built here\n",
        "What needs no more than a package merges where that is installed, as was tried with timm and torchaudio.\n",
        "| family | class | why |",
        "|---|---|---|",
        *(f"| `{family}` | `{name}` | {why} |" for family, (name, why) in sorted(others.items())),
    ]
    return "\n".join(lines) + "\n" + _REFUSED


def main(only: list[str]) -> None:
    import transformers
    from sweep import FAMILIES, swept
    from tiny_exceptions import NOT_BUILT

    rows = {f: (FAMILIES[f].name, why) for f, why in NOT_BUILT.items()}
    if only:
        rows |= {f: row for f, row in recorded().items() if f in FAMILIES and f not in NOT_BUILT}
    for family in only or [f for f in FAMILIES if f not in NOT_BUILT]:
        with tempfile.TemporaryDirectory() as folder:
            rows[family] = (FAMILIES[family].name, as_row(swept(FAMILIES[family], Path(folder))))
    PAGE.write_text(page(rows, transformers.__version__), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
