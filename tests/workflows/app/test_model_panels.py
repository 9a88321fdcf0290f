"""The first things on a model's page: the verdict, the picture of its scores, and the ways on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from board_helpers import HOSTILE, family

from hubmerge.board.leaderboard import build_board
from hubmerge.board.values import Row
from hubmerge.output.scores import DomainLine, Estimate, Skill, SkillsKept, verdict
from workflows.app.model_panels import scores_picture, use_it, verdict_panel, ways_on


def skill(kept: bool, domain: str = "math") -> Skill:
    return Skill("gsm8k", domain, "org/math", Estimate(0.9 if kept else 0.1, 0.05, 1.0))


def line(domain: str, change: float, spread: float = 0.01) -> DomainLine:
    estimate = Estimate(change, change - spread, change + spread)
    return DomainLine(domain, Estimate(0.5, 0.4, 0.6), None, "org/math", estimate)


def test_the_verdict_names_the_skills_kept_and_what_is_below_the_best_parent_beyond_chance() -> None:
    three = SkillsKept((skill(True), skill(True, "tool"), skill(False, "code")))
    lines = (line("math", -0.12), line("code", -0.1, 0.2), line("tool", 0.3), line("memory", -0.012, 0.001))
    below = "Below the best parent: math by 12 points, memory by 1 point."
    assert verdict(three, lines) == f"Keeps 2 of 3 skills: math and tool use, not code. {below}"
    assert verdict(SkillsKept((skill(True),)), lines) == f"Keeps 1 of 1 skill. {below}"
    mixed = SkillsKept((skill(True), skill(False), skill(True, "code")))
    assert verdict(mixed, ()) == "Keeps 2 of 3 skills: math (1 of 2) and code."
    assert verdict(SkillsKept((skill(False),)), ()) == "Keeps 0 of 1 skill."
    assert verdict(SkillsKept((skill(True),)), ()) == "Keeps 1 of 1 skill."
    assert verdict(SkillsKept(()), ()) == "No parent is above the base."
    assert verdict(None, lines) is None  # a parent has no score yet


@pytest.fixture
def merged() -> Row:
    return next(r for s in build_board(family()).suites for r in s.rows if r.model == "org/merge")


def test_a_merge_is_drawn_beside_every_parent_with_its_intervals_and_its_numbers(merged: Row) -> None:
    assert str(verdict_panel(merged)).startswith('<p class="hm-verdict">Keeps 2 of 2 skills')
    picture = str(scores_picture(merged))
    assert picture.count("<h3>") == 3  # math, instruction, code
    assert picture.count('class="hm-dot"') == 3 * 4  # the merge, two agents, the base
    lefts = [float(left) for left in re.findall(r'hm-dot" style="left:([\d.]+)%', picture)]
    assert lefts[:4] == [66.0, 60.0, 10.0, 20.0]
    assert "66%" in picture  # in words, for who does not see the picture
    assert 'class="hm-merge"' not in picture  # the form's, which hides what it stands on for a moment


def test_the_ways_on_lead_to_a_merge_a_comparison_and_the_board(merged: Row) -> None:
    ways = str(ways_on("org/merge", "org/base"))
    for address in ("merge?agent=org/merge", "diff?base=org/base&amp;agent=org/merge", "leaderboard"):
        assert f'href="{address}"' in ways
    assert "&#34;org/merge&#34;" in str(use_it("org/merge", merged.tasks))


def test_a_hostile_name_gets_no_snippet_and_no_way_on() -> None:
    assert use_it(HOSTILE, ()) is None
    assert ways_on(HOSTILE, "org/base") is None


def test_the_snippet_brings_the_prompts_of_the_tasks_that_were_scored(merged: Row) -> None:
    gsm8k = replace(merged.tasks[0], task="gsm8k", few_shot=5)
    others = [replace(merged.tasks[0], task=name, few_shot=0) for name in ("zoo_math", "mbpp", "mbpp_sanitized")]
    shown = str(use_it("org/merge", [gsm8k, *others]))
    assert "GSM8K, after 5 solved examples, in the model&#39;s chat template where it has one:" in shown
    assert "Question: {question}\nAnswer:" in shown
    assert "Zoo: two-digit addition with carries, as plain text, without a chat template:" in shown
    assert "math {digit} {digit} + {digit} {digit} =" in shown
    assert "MBPP, pass@1, MBPP sanitized, pass@1, " in shown  # which ask alike
    assert shown.count("<pre") == 4
    assert "What is 17 + 25?" in shown
    assert "prompt = &#34;math {digit} {digit} + {digit} {digit} =&#34;" in str(use_it("org/merge", others[:1]))
    assert "<details>" not in str(use_it("org/merge", merged.tasks))  # tasks that nobody knows here
