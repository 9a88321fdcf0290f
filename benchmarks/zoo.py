"""The example agents and every method on them: docs/zoo.md, and the table of docs/evaluation.md.

    python -m benchmarks.zoo [--limit PROMPTS]

examples/recipes/all_methods.yaml is merged once. Base, agents and variants are then measured twice on the held-out
prompts (500 per domain, greedy, exact match, float32): by examples/zoo/evaluate.py, which generates with transformers
by itself and counts, and by `hubmerge.evaluation` (lighteval in its own process, data through an embedded Hub). Exit
code 1 if any count differs. With `--limit` nothing is written but the counts on the terminal.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.zoo.domains import DOMAIN_NAMES
from examples.zoo.evaluate import Score, evaluate_model
from hubmerge.engine.options import StreamOptions
from hubmerge.evaluation.runner import EvaluateOptions, evaluate
from hubmerge.evaluation.suites import pin
from hubmerge.hub.client import Hub
from hubmerge.line import Request, merge_to_folders, prepare_variants
from hubmerge.output.figures import render_figures
from hubmerge.output.report import Report
from hubmerge.recipe.model_name import ModelName
from hubmerge.recipe.sweep import load_sweep
from localhub.process import LocalHubProcess

ROOT = Path(__file__).resolve().parents[1]
ZOO, DOCS = ROOT / "examples" / "zoo", ROOT / "docs"
BEGIN, END = "<!-- zoo_evaluation: begin -->", "<!-- zoo_evaluation: end -->"
Row = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/zoo"), help="a folder that is made anew")
    parser.add_argument("--limit", type=int, help="prompts per domain (default: all 500)")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    reports = merged(options.out / "merged")
    models = {f"zoo/{name}": ZOO / name for name in ("base", *DOMAIN_NAMES)}
    models |= {name: options.out / "merged" / name for name in reports}
    rows = []
    with LocalHubProcess(options.out / "hub", zoo=True) as local:
        hub = Hub(local.endpoint, local.tokens["ada"])
        for name, folder in models.items():
            direct = evaluate_model(str(folder), limit=options.limit, batch_size=250)
            rows.append(_compared(name, folder, hub, options.out / "runs", options.limit, direct))
            print(rows[-1], flush=True)
    if options.limit is None:
        _write(reports, rows)
    differing = [row["model"] for row in rows if row["runner"] != row["direct"]]
    print(f"{len(rows)} models, {len(differing)} differ: {', '.join(differing)}")
    return 1 if differing else 0


def merged(folder: Path) -> dict[str, Report]:
    """Every variant of the recipe of all methods, merged into a folder of its name."""
    variants = load_sweep(ROOT / "examples" / "recipes" / "all_methods.yaml").variants
    hub = Hub("http://127.0.0.1:9")  # everything is local
    prepared = prepare_variants([recipe for _, recipe in variants], hub, Request(allow_local=True))
    pairs = [(one, folder / name) for one, (name, _) in zip(prepared, variants, strict=True)]
    reports = merge_to_folders(pairs, hub, StreamOptions(cache=folder / "cache"))
    return {name: report for (name, _), report in zip(variants, reports, strict=True)}


def _compared(
    name: str, folder: Path, hub: Hub, runs: Path, limit: int | None, direct: Mapping[str, Score]
) -> dict[str, Any]:
    """The counts of the runner beside those of the direct count."""
    result = evaluate(
        ModelName(id=str(folder.resolve()), local=True),
        pin("zoo", hub, limit=limit),
        hub=hub,
        workdir=runs / name.replace("/", "_"),
        options=EvaluateOptions(batch_size=250, dtype="float32", device="cpu"),
        allow_local=True,
    )
    assert result.status == "done", result.error
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


def _write(reports: Mapping[str, Report], rows: list[dict[str, Any]]) -> None:
    (DOCS / "data" / "zoo_evaluation.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    page = DOCS / "evaluation.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{counts_table(rows)}{END}{after}", encoding="utf-8")
    first = next(iter(reports.values()))
    for path, image in render_figures(first).items():
        (DOCS / "figures" / f"zoo_{Path(path).name}").write_bytes(image)
    (DOCS / "zoo.md").write_text(zoo_page(rows, reports), encoding="utf-8")


def counts_table(rows: list[dict[str, Any]]) -> str:
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


def zoo_page(rows: Sequence[Row], reports: Mapping[str, Report]) -> str:
    """The page, with the scores of the direct count."""
    scored = []
    for row in rows:
        found = [Score(row["direct"][domain], row["total"]) for domain in DOMAIN_NAMES]
        values = [100 * score.accuracy for score in found]
        shown = " | ".join(map(str, found))
        scored.append(
            f"| `{row['model'].removeprefix('zoo/')}` | {shown} | {sum(values) / 3:.1f} | {min(values):.1f} |"
        )
    kept = []
    for name, report in reports.items():
        shares = " | ".join(f"{o.effective_scale or 0:.3f}, {o.kept_shared or 0:.3f}" for o in report.outcomes)
        kept.append(f"| `{name}` | {report.rounding} | {shares} |")
    total = next(iter(reports.values())).statistics["total"]
    n = total["elements"]
    agents = [
        f"| {a['agent']} | {a['density']:.2%} | {a['unique'] / n:.2%} | {a['shared'] / n:.2%} | {a['rho']:.3f} |"
        for a in total["agents"]
    ]
    pairs = [
        f"| {', '.join(p['agents'])} | {p['jaccard']:.3f} | {p['cosine']:.3f} | {p['sign_agreement']:.1%} |"
        for p in total["pairs"]
    ]
    return _ZOO_PAGE.format(
        scores="\n".join(scored),
        kept="\n".join(kept),
        agents="\n".join(agents),
        pairs="\n".join(pairs),
        changed=" / ".join(f"{share:.1%}" for share in total["overlap_share"]),
        shares=_SHARES.format_map(total["shares"]),
    )


_SHARES = (
    "Shares: private {private:.2%}, several {several:.2%} (conflict {conflict:.2%}, overlap {overlap:.2%}), "
    "unchanged {unchanged:.2%}"
)
_ZOO_PAGE = """\
# Every method on the example agents

Generated by `python -m benchmarks.zoo` from examples/recipes/all_methods.yaml. Accuracy in percent on
500 held-out prompts per domain (greedy, exact match, float32), ± one standard error. A toy of 172 K
parameters: it shows that the code works and what averaging costs, not which method is best elsewhere.

| model | math | tool | mem | mean | worst |
|---|---:|---:|---:|---:|---:|
{scores}

## What each variant kept

Effective λ on the agent's unique updates, as stored, and the share of its shared updates kept before rounding.

| variant | rounding | math | tool | mem |
|---|---|---|---|---|
{kept}

## What the agents changed

| agent | density | unique, % of all | shared, % of all | ρ |
|---|---:|---:|---:|---:|
{agents}

Changed by 0 / 1 / 2 / 3 agents: {changed}.
{shares}.

| pair | Jaccard | cosine | same sign where both changed |
|---|---:|---:|---:|
{pairs}

![Share of changed elements by layer and module](figures/zoo_density_by_layer.svg)

![Unique and shared updates, and how many agents changed an element](figures/zoo_overlap.svg)

For comparison, the RAM paper's agents on Qwen2.5-7B changed 3.2%, 46.2% and 54.3% of the elements, of which
6.3%, 40.8% and 47.5% were unique (arXiv:2601.13572, Fig. 2).
"""


if __name__ == "__main__":
    sys.exit(main())
