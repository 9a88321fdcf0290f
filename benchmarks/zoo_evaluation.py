"""The runner against a direct count: base, agents and every method of the zoo, 500 prompts per domain.

    python -m benchmarks.zoo_evaluation

Each model is measured twice: by `hubmerge.evaluation` (lighteval in its own process, data through an embedded Hub),
and by examples/zoo/evaluate.py, which generates with transformers by itself and counts. Both are greedy and in
float32. Writes docs/data/zoo_evaluation.json and the table in docs/evaluation.md; exit code 1 if any count differs.
A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from examples.zoo.domains import DOMAIN_NAMES
from examples.zoo.evaluate import evaluate_model
from hubmerge.engine.stream import StreamOptions
from hubmerge.evaluation.result import EvaluationResult
from hubmerge.evaluation.runner import EvaluateOptions, Unobserved, evaluate
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.sweep import load_sweep
from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT / "examples" / "zoo"
DATA = ROOT / "docs" / "data" / "zoo_evaluation.json"
PAGE = ROOT / "docs" / "evaluation.md"
BEGIN, END = "<!-- zoo_evaluation: begin -->", "<!-- zoo_evaluation: end -->"


class _Quiet(Unobserved):
    def statistics(self, values: object) -> None: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/zoo_evaluation"))
    parser.add_argument("--limit", type=int, help="prompts per domain (default: all 500)")
    options = parser.parse_args()
    models = {f"zoo/{name}": ZOO / name for name in ("base", *DOMAIN_NAMES)} | _merged(options.out / "merged")
    rows = []
    with LocalHubProcess(options.out / "hub", zoo=True) as local:
        hub = Hub(local.endpoint, local.tokens["ada"])
        for name, folder in models.items():
            rows.append(_row(name, folder, hub, options.out, options.limit))
            print(rows[-1], flush=True)
    if options.limit is None:
        DATA.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        write_table(rows)
    shutil.rmtree(options.out)  # the next benchmark measures again
    differing = [row["model"] for row in rows if row["runner"] != row["direct"]]
    print(f"{len(rows)} models, {len(differing)} differ: {', '.join(differing)}")
    return 1 if differing else 0


def _merged(folder: Path) -> dict[str, Path]:
    """Every variant of the recipe of all methods, merged unless it is there."""
    variants = load_sweep(ROOT / "examples" / "recipes" / "all_methods.yaml").variants
    folders = {name: folder / name for name, _ in variants}
    if not all((path / "hubmerge.json").exists() for path in folders.values()):
        prepared = prepare_variants(
            [recipe for _, recipe in variants], Hub("http://127.0.0.1:9"), Request(allow_local=True)
        )
        pairs = list(zip(prepared, folders.values(), strict=True))
        merge_to_folders(pairs, Hub("http://127.0.0.1:9"), StreamOptions(cache=folder / "cache"), _Quiet())
    return folders


def _row(name: str, folder: Path, hub: Hub, out: Path, limit: int | None) -> dict[str, Any]:
    """The counts of both; the runner's result is kept, so that a stopped benchmark goes on."""
    kept = out / "results" / f"{name.replace('/', '_')}-{limit or 'all'}.json"
    if kept.exists():
        result = EvaluationResult.model_validate_json(kept.read_bytes())
    else:
        result = evaluate(
            ModelName(id=str(folder.resolve()), local=True),
            pin("zoo", hub, limit=limit),
            hub=hub,
            workdir=out / "runs" / name.replace("/", "_"),
            options=EvaluateOptions(batch_size=250, dtype="float32", device="cpu"),
            allow_local=True,
        )
        assert result.status == "done", result.error
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(result.to_json(), encoding="utf-8")
    direct = evaluate_model(str(folder), limit=limit, batch_size=250)
    return {
        "model": name,
        "runner": {score.domain: round(score.value * score.samples) for score in result.tasks},
        "direct": {domain: score.correct for domain, score in direct.items()},
        "total": result.tasks[0].samples,
        "stderr": {score.domain: score.stderr for score in result.tasks},
        "suite_version": result.suite_version,
        "seconds": result.environment.seconds,
        "lighteval": result.environment.lighteval,
    }


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the markers of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}{END}{after}", encoding="utf-8")


def table(rows: list[dict[str, Any]]) -> str:
    """Right answers by the runner / by the direct count, and the accuracy with its standard error."""
    lines = [
        "| model | " + " | ".join(DOMAIN_NAMES) + " | accuracy, % | equal |",
        "|---|" + "---:|" * (len(DOMAIN_NAMES) + 1) + "---|",
    ]
    for row in rows:
        counts = [f"{row['runner'][d]} / {row['direct'][d]}" for d in DOMAIN_NAMES]
        shares = [f"{100 * row['runner'][d] / row['total']:.1f} ± {100 * row['stderr'][d]:.1f}" for d in DOMAIN_NAMES]
        equal = "yes" if row["runner"] == row["direct"] else "no"
        lines.append(f"| `{row['model']}` | {' | '.join(counts)} | {', '.join(shares)} | {equal} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
