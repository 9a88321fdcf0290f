"""What the card promises: the report's figures in words, and a stranger's text that stays text.

The golden card of tests/data is what `render_card` makes of tests/data/report.json, a merge invented by hand.
After a wanted change of the template, write it anew and read the difference:

    python tests/output/test_card.py
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from report_helpers import report_of

if __name__ == "__main__":
    sys.path[:0] = map(str, (Path(__file__).parents[1], Path(__file__).parents[2]))

from markdown_reading import PARSER, lively, structure
from report_helpers import DATA, FIGURES, report, report_data

from hubmerge.evaluation.tasks import registry
from hubmerge.output.card import metadata, render_card
from hubmerge.output.card_scores import BENCHMARKS
from hubmerge.output.report import Report
from localhub.cards import card_problems, parse_card

GOLDEN = DATA / "card.md"
HOSTILE = (
    "mit\n---\n<script>alert(1)</script>",
    *(
        "a|b|c",
        "`x` ``y`` `",
        "](javascript:alert(1)",
        "[click](javascript:alert(1))",
        "[ref]: javascript:x",
        "\\",
        " ",
    ),
    *("![x](https://evil.example/x.png)", "<img src=x onerror=alert(1)>", "<!--", "</details><h1>x", "&lt;script&gt;"),
    *("org/name\n\n# Owned\n", "- item", "1. item", "**bold** _it_ ~~gone~~ $x$ $$y$$", "```\n<script>\n```"),
    "https://evil.example/ www.evil.example evil.example a@evil.example",
    "{{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe \u0000 \u2028---",
    "x" * 5000,
)


def body_of(card: str) -> str:
    return card.split("\n---\n", 1)[1]


def test_the_card_of_a_known_report_is_the_golden_one_which_the_hub_takes():
    card = render_card(report(), figures=FIGURES)
    assert card == GOLDEN.read_text(encoding="utf-8")
    assert card_problems(card) == ([], [])
    assert ModelCard(card, ignore_metadata_errors=False).data.base_model == [
        "org/base",
        "org/math",
        "other.org/tool_use",
    ]


@pytest.mark.parametrize("schema", [2, "3", None])
def test_a_report_of_another_schema_is_not_read_by_guesswork(schema):
    with pytest.raises(ValueError, match="a report of schema"):
        Report.from_json(report_data() | {"schema": schema})


def test_the_header_holds_a_score_of_every_task_that_is_no_benchmark_of_the_hub():
    """As huggingface_hub reads it; `pass@1` and the like are names of metrics."""
    rows = [
        {"task": name, "metric": t.metric, "dataset": t.rows.repo, "value": 0.5, "samples": 4}
        for name, t in registry().items()
    ]
    found = ModelCard(render_card(report(evaluations=rows)), ignore_metadata_errors=False).data.eval_results
    assert [(r.dataset_name, r.metric_type, r.metric_value) for r in found] == [
        (row["task"], row["metric"], 0.5) for row in rows if row["task"] not in BENCHMARKS
    ]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"id": "apache-2.0"}, {"license": "apache-2.0"}),
        ({"id": "unknown"}, {"license": "unknown"}),
        (
            {"id": "other", "name": "Qwen License", "link": "https://qwen.example/LICENSE"},
            {"license": "other", "license_name": "qwen-license", "license_link": "https://qwen.example/LICENSE"},
        ),
        ({"id": "other", "link": "javascript:alert(1)"}, {"license": "other", "license_name": "other"}),
        ({"id": "mit\n---\n<script>"}, {"license": "other", "license_name": "mit-script"}),
        ({"id": "other", "name": "1e3"}, {"license": "other", "license_name": "1e3"}),  # a number of YAML 1.2
        (
            {"id": "other", "name": f"{'x' * 80}-and-gpl-3.0-and-llama4"},
            {"license": "other", "license_name": f"{'x' * 80}-and-more"},
        ),
    ],
)
def test_the_header_holds_a_license_that_the_hub_takes(stated, expected):
    data = metadata(report(license=stated))
    assert {key: value for key, value in data.items() if key.startswith("license")} == expected
    card = render_card(report(license=stated))
    assert ("license_name: '1e3'\n" in card) == ("1e3" in expected.values())  # as the Hub reads it
    assert card_problems(card) == ([], [])


def test_local_parents_are_neither_in_the_header_nor_linked_and_their_paths_stay_out_of_the_text():
    parents = [{**p, "kind": "local", "id": f"/home/ada/secret/{p['label']}"} for p in report_data()["parents"]]
    card = render_card(report(parents=parents, recipe_yaml="base: x\n"))
    assert "base_model" not in parse_card(card)
    assert "/home/ada" not in card
    assert not [url for kind, url in lively(body_of(card)) if kind == "link" and "org" in url and "arxiv" not in url]
    assert "Local folders are named" in card


def test_a_paper_without_a_number_is_named_alone():
    method = {**report_data()["method"], "papers": [{"title": "A paper", "arxiv": "", "equations": "Eq. 4"}]}
    assert "\n- A paper, Eq. 4\n" in render_card(report(method=method))


def test_a_parent_whose_commit_is_no_sha_is_not_linked_at_it():
    for sha in ("main/../../x", "main/../../x) <b>"):
        body = body_of(render_card(report(parents=[{**p, "sha": sha} for p in report_data()["parents"]])))
        assert not [url for _, url in lively(body) if "tree" in url]
        assert f"`{sha}`" in body


def test_parents_are_linked_at_their_commit_on_the_hub_that_was_used_where_a_link_can_hold_it():
    links = [url for kind, url in lively(render_card(report(), endpoint="http://127.0.0.1:8000")) if kind == "link"]
    assert f"http://127.0.0.1:8000/org/math/tree/{'b' * 40}" in links
    assert "https://arxiv.org/abs/2601.13572" in links
    for endpoint in ("https://host/~team", "https://host/a%20b", "HTTPS://host", "https://bücher.example"):
        card = render_card(report(), endpoint=endpoint)  # a Hub whose address no link holds ends no merge
        assert f"| agent | `org/math` (gated) | `{'b' * 40}` (" in card


def replaced(data: Any, old: str, new: str) -> Any:
    """`data` with the string `old` replaced in every value and key."""
    if isinstance(data, dict):
        return {replaced(k, old, new): replaced(v, old, new) for k, v in data.items()}
    if isinstance(data, list):
        return [replaced(item, old, new) for item in data]
    return new if data == old else data


@cache
def harmless() -> str:
    return render_card(Report.from_json(hostile_data("harmless")), figures=FIGURES)


def hostile_data(text: str) -> dict[str, Any]:
    """The known report with `text` wherever a stranger, or a stranger's hubmerge.json, can put a string."""
    data = replaced(report_data(), "tool_use", text)
    stranger = next(p for p in data["parents"] if p["label"] == text)
    stranger |= {"license": text, "requested": text, "id": text, "sha": text}
    data["warnings"] = [text]
    data["license"] = {"id": text, "name": text, "link": text, "reason": text}
    data["architecture"] = text
    data["method"] |= {"title": text, "summary": text, "formula": text, "parameters": {text: text}}
    data["method"]["papers"] = [{"title": text, "arxiv": text, "equations": text}]
    data["files"][0] |= {"name": text, "sha256": text}
    data["environment"] = {text: text, "device": text, "device_failed": text, "versions": {text: text}}
    asked = {"task": text, "metric": text, "value": text}
    data["evaluations"] = [{**asked, "title": text, "prompt": text, "chat": True}, {**asked, "model": text}]
    data["parents"][1]["made_from"] = [text, {"id": text, "role": "agent", "license": text, "made_from": [text]}]
    data["statistics"]["modules"] = {text: data["statistics"]["modules"]["mlp"]}
    data |= {"target": text, "created": text, "identity": text, "rounding": text, "dtype": [text], "hubmerge": text}
    data["recipe_yaml"] = f"base: |\n  {text}\n{text}\n"
    return data


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_stays_inert_wherever_it_stands(text):
    card = render_card(Report.from_json(hostile_data(text)), figures=FIGURES)
    plain = harmless()
    body = body_of(card)
    # the stranger of the plain card is a Hub id, hence linked; that of the hostile one is not
    ours = [item for item in lively(body_of(plain)) if not item[1].endswith("/harmless")]
    assert lively(body) == ours
    assert structure(body) == structure(body_of(plain))
    header = re.findall(r"\A---\n(.*?)^---\n", card, re.DOTALL | re.MULTILINE)
    assert len(header) == 1
    assert yaml.safe_load(header[0]) == metadata(Report.from_json(hostile_data(text)))
    assert re.fullmatch(r"[\w./: \n-]*", header[0], re.ASCII)
    assert card_problems(card) == ([], [])
    card.encode()


@pytest.mark.parametrize("agents", [2, 8, 32])
def test_any_number_of_agents_renders(agents):
    card = render_card(report_of([f"agent-{k}" for k in range(agents)]), figures=FIGURES)
    rows = [line for line in card.splitlines() if line.startswith("| agent |")]
    assert len(rows) == agents
    assert f"| {agents} agents |" in card
    assert f"| `agent-{agents - 2}`, `agent-{agents - 1}` |" in card


def test_infinity_absent_values_and_empty_regions_render():
    data = report_data()
    data["outcomes"] = [
        {**o, "effective_scale": None, "effective_scale_other_rounding": None, "kept_unique": None, "kept_shared": None}
        for o in data["outcomes"]
    ]
    total = data["statistics"]["total"]
    total["agents"][0] |= {"changed": 0, "density": 0.0, "unique": 0, "shared": 0, "shared_with": [0, 0], "rho": "inf"}
    total["pairs"][0]["both_changed"] = 0
    data["statistics"] |= {"layers": {}, "modules": {}}
    data |= {"warnings": [], "environment": {}, "target": "", "evaluations": []}
    card = render_card(Report.from_json(data))
    said = [
        *("| `math` | 0% | 0 | 0 | 0 | ∞ |", "| `math` | — | — | 1.100 | — |"),
        "Changed nothing above 1e-05, so that the merge holds nothing of it: `math`.",
        "hubmerge merge recipe.yaml --out merged",
    ]
    assert [words for words in said if words not in card] == []
    assert not re.search("Layer by layer|is kept at", card)


FETCH = {
    "bytes": 346_200_000, "range_bytes": 86_500_000, "shards": 20, "refetched_shards": 5, "hits": 12,
    "ranged_shards": 2, "high_water_bytes": 68_000_000, "budget_bytes": 72_000_000,
}  # fmt: skip


def test_what_was_fetched_and_what_lay_on_disk_stands_on_the_card_in_words():
    environment = {"seconds": 60.0, "fetch": FETCH, "disk_high_water_bytes": 122_000_000, "huggingface_hub": "2.4.0"}
    rows = {
        "`huggingface_hub`": "2.4.0",
        "Disk at its peak": "122 MB",
        "Fetched": "346 MB, 20 shards whole, 5 of them again, since they had not fitted in, 2 more by ranges (86.5 MB)",
        "Found on disk": "12 shards of an earlier pass or run",
        "Inputs on disk": "68.0 MB at their peak, of 72.0 MB that they could take",
    }
    card = render_card(report(environment=environment))
    assert [name for name, told in rows.items() if f"| {name} | {told} |" not in card] == []
    plain = {"bytes": 5000, "shards": 1, "hits": 0, "refetched_shards": 0, "ranged_shards": 0}
    card = render_card(report(environment={"fetch": plain}))
    assert "| Fetched | 5.00 kB, 1 shard whole |" in card
    assert "Inputs on disk" not in card


@pytest.mark.parametrize("value", ["<b>x</b>", -1, 10**400, True, None, [1], {"a": 1}])
def test_fetch_figures_that_are_no_numbers_do_no_harm(value):
    card = render_card(report(environment={"fetch": dict.fromkeys((*FETCH, "|"), value)}))
    assert "| Fetched | 0 B, 0 shards whole |" in card
    assert "<b>" not in card


def test_the_prompts_of_the_scores_stand_with_the_snippet_alike_ones_once():
    asked = {"metric": "m", "value": 0.5, "chat": False}
    rows = [
        {**asked, "task": "a", "title": "First", "prompt": "Question: {question}", "few_shot": 5},
        {**asked, "task": "b", "title": "Second", "prompt": "Question: {question}", "few_shot": 5},
        {**asked, "task": "c", "prompt": "{prompt}", "chat": True},
        {**asked, "task": "d", "prompt": "of a parent", "model": "math"},
    ]
    card = render_card(report(evaluations=rows))
    assert "First, Second, after 5 solved examples, as plain text, without a chat template:\n" in card
    assert "c, in the model's chat template where it has one:\n" in card
    blocks = [t.content for t in PARSER.parse(body_of(card)) if t.type == "fence" and t.info == "text"]
    assert blocks[:2] == ["Question: {question}\n", "{prompt}\n"]
    assert "of a parent" not in card


def test_the_snippet_asks_as_the_scores_were_measured_where_that_was_plain_text():
    row = {"task": "a", "metric": "m", "value": 0.5, "chat": False, "few_shot": 0, "prompt": "math {digit} ="}
    assert 'prompt = "math {digit} ="  # fill in what stands in braces' in render_card(report(evaluations=[row]))
    for other in ({"chat": True}, {"few_shot": 5}, {"prompt": None}):
        assert "What is 17 + 25?" in render_card(report(evaluations=[{**row, **other}]))


def test_scores_by_domain_stand_open_and_those_of_every_task_beside_every_parent_are_folded():
    row = {"task": "gsm8k", "title": "GSM8K", "domain": "math", "metric": "m", "samples": 100}
    values = {"": 0.6, "base": 0.2, "math": 0.7, "tool_use": 0.3}
    rows = [{**row, "value": value, **({"model": name} if name else {})} for name, value in values.items()]
    scores = render_card(report(evaluations=rows)).split("## Scores")[1].split("## Use it")[0]
    open_part, folded = scores.split("<details><summary>Every task, beside every parent</summary>\n\n")
    assert "| GSM8K | math | 80% (" in open_part
    assert "| math | 60.0 (" in open_part
    assert "| This merge | Best parent |" in open_part
    waiting = render_card(report(evaluations=rows[:-1]))  # a parent that has no score may be the best
    assert ("| This merge | Best scored parent |" in waiting, "Kept of its gain" in waiting) == (True, False)
    assert folded.startswith("| Task | Metric | this merge | base | math | `tool_use` |\n|---|")
    assert folded.rstrip().endswith("|\n\n</details>")


def test_a_lineage_of_several_generations_names_roles_weights_and_licenses():
    parents = report_data()["parents"]
    base = {"role": "base", "id": "org/base", "license": "apache-2.0"}
    first = {"role": "agent", "id": "org/first", "license": "mit", "made_from": ["org/base"]}
    pair = {"role": "agent", "id": "org/pair", "weight": 0.25, "made_from": [base, first]}
    parents[1] |= {"made_from": ["org/base"]}  # as every agent
    parents[2] |= {"made_from": [base, pair, {"role": "agent", "kind": "local", "id": "/home/ada/x", "label": "x"}]}
    card = render_card(report(parents=parents))
    [tree] = [t.content for t in PARSER.parse(body_of(card)) if t.type == "fence" and "├─" in t.content]
    assert tree.splitlines() == [
        "ada/pair-ram-plus · cc-by-nc-4.0-and-unstated-terms",
        "├─ org/base · base · apache-2.0",
        "├─ org/math · agent · cc-by-nc-4.0",
        "└─ other.org/tool_use · agent × 0.5 · license",
        "   ├─ org/base · base · apache-2.0",
        "   ├─ org/pair · agent × 0.25 · no license stated",
        "   │  ├─ org/base · base · apache-2.0",
        "   │  └─ org/first · agent · mit",
        "   └─ x · agent · no license stated",
    ]
    again = Report.from_json(json.loads(json.dumps(report(parents=parents).to_json())))
    assert render_card(again) == card


def test_a_card_without_evaluation_says_so_plainly():
    card = render_card(report(evaluations=[]))
    assert "**No evaluation has been run yet**" in card
    assert "## Scores" not in card
    assert "![" not in card
    assert "No evaluation" not in render_card(report())


def outcome(**values: Any) -> list[dict[str, Any]]:
    data = report_data()["outcomes"]
    return [{**data[0], **values}, {**data[1], "effective_scale": None, "effective_scale_other_rounding": None}]


NEAREST, STOCHASTIC = "effective_scale", "effective_scale_other_rounding"
HALF = [{**o, "scale": 1.0, "kept_unique": 0.5, "effective_scale": 0.4} for o in report_data()["outcomes"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"outcomes": outcome(effective_scale=1.05)},  # λ = 1.1 stored as 1.05: half of λ − 1 is gone
            [
                "**Rounding to nearest lost part of λ in this model.**",
                "- `math`: 1.1000 becomes 1.0500 with nearest rounding, 50.0% of λ − 1 is lost.",
            ],
        ),
        (
            {"rounding": "stochastic", "outcomes": outcome(**{NEAREST: 1.0999, STOCHASTIC: 1.025})},
            ["**Rounding to nearest would have lost part of λ**", "75.0% of λ − 1 is lost"],
        ),
        ({"outcomes": outcome(**{NEAREST: 1.0999, STOCHASTIC: 1.0998})}, []),
        (
            {"outcomes": HALF},
            [
                "**Rounding to nearest lost part of the updates in this model.**",
                "0.5000 becomes 0.4000 with nearest rounding, 20.0% of the update is lost",
            ],
        ),
    ],
    ids=["nearest", "stochastic", "neither", "a mean without λ"],
)
def test_what_rounding_took_is_named_and_no_loss_is_claimed_where_there_is_none(changes, said):
    card = render_card(report(**changes))
    assert [sentence for sentence in said if sentence not in card] == []
    assert ("lost" in card) == bool(said)


def test_an_agent_that_changed_most_weights_is_an_anomaly():
    data = report_data()
    data["statistics"]["total"]["agents"][1]["density"] = 0.9
    said = "- Changed more than 50% of the weights, which is no sparse update: `tool_use`."
    assert said in render_card(Report.from_json(data))


def test_only_figures_that_exist_are_shown():
    assert "![" not in render_card(report())
    images = [url for kind, url in lively(render_card(report(), figures=FIGURES)) if kind == "image"]
    assert sorted(images) == sorted(FIGURES)
    assert "![" not in render_card(report(), figures=["https://evil.example/x.png"])


def test_the_snippet_and_the_command_are_valid_for_any_target():
    for target in ("ada/x", 'a"b', "x'; rm -rf ~"):
        card = render_card(report(target=target))
        blocks = {t.info: t.content for t in PARSER.parse(body_of(card)) if t.type == "fence"}
        tree = compile(blocks["python"], "snippet", "exec")
        assert target in tree.co_consts
        assert blocks["bash"].count("\n") == 1


if __name__ == "__main__":
    GOLDEN.write_text(render_card(report(), figures=FIGURES), encoding="utf-8")
    print(f"{GOLDEN} written; read the difference")
