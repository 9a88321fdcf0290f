"""Rules: what is accepted, what is refused and with which field."""

import re
from pathlib import Path

import pytest
import yaml
from watch_helpers import rule_data, rule_of

from hubmerge.errors import RuleError
from workflows.watchers.base import Watcher
from workflows.watchers.kinds import registry
from workflows.watchers.rule import AgentRule
from workflows.watchers.rules import load_rule, load_rules, rule_from_data, rule_from_yaml
from workflows.watchers.rules import rule_data as written_again

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "watchers").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_the_examples_are_valid_and_the_same_rules_when_they_are_written_and_read_again(path):
    rule = load_rule(path)
    assert rule_from_data(written_again(rule)) == rule
    assert rule.owner == "ada"
    assert registry()[rule.watch]().about(rule).startswith("Merges ")


def test_a_rule_is_read_as_it_is_written():
    agents = {"authors": ["zoo", "bob"], "tags": ["rl"], "max_parameters": "1.5B", "min_parameters": 1000}
    target = "ada/{base}-{name}-{count}-{set}"
    rule = rule_of(base="zoo/base@main", agents=agents, join={"best": 3}, suite="zoo", target=target)
    assert (rule.base.id, rule.base.revision) == ("zoo/base", "main")
    assert (rule.agents.authors, rule.agents.max_parameters) == (("zoo", "bob"), 1_500_000_000)
    assert (rule.join.best, rule.join.fixed, rule.min_agents) == (3, (), 2)
    assert rule.target_for("0123456789abcdef", 3) == "ada/base-watch-3-0123456789"
    assert rule_of().join.best is None  # all is the default


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"agents": None}, "agents", "matches everything"),
        ({"agents": {}}, "agents", "matches everything"),
        ({"agents": {"tags": ["transformers", "safetensors"]}}, "agents", "matches everything"),
        ({"agents": {"tags": ["base_model:finetune:zoo/base"]}}, "agents", "matches everything"),
        ({"agents": {"licenses": ["mit"], "lineage": "any"}}, "agents", "matches everything"),
        ({"agents": {"authors": ["*"]}}, "author 1", "letters, digits and hyphens"),
        ({"agents": {"authors": ["zoo"], "lineage": "none"}}, "lineage", "finetune"),
        ({"agents": {"authors": ["zoo"], "colour": "red"}}, "colour", "no such key: colour"),
        ({"agents": {"authors": ["zoo"], "min_parameters": "2B", "max_parameters": "1B"}}, "agents", "more than"),
        ({"agents": {"authors": ["zoo"], "max_parameters": "many"}}, "max_parameters", "1.5B"),
        ({"agents": {"authors": ["zoo"], "exclude": ["a/b", "agent"]}}, "exclude 2", "no repo id"),
        ({"agents": {"authors": "zoo"}}, "authors", "must be a list"),
        ({"agents": {"authors": ["zoo"], 1: 2}}, "agents → 1", "a key must be text"),
        ({"agents": "zoo"}, "agents", "must be a table"),
        ({"base": None}, "base", "this is missing"),
        ({"base": "./folder"}, "base", "folder"),
        ({"base": "https://evil/zoo/base"}, "base", "URL"),
        ({"base": ["zoo/base"]}, "base", "text"),
        ({"name": "../up"}, "name", "lower-case letters, digits and hyphens, at most 40"),
        ({"owner": None}, "owner", "this is missing"),
        ({"owner": "a/b"}, "owner", "letters, digits and hyphens"),
        ({"budget": None}, "budget", "this is missing"),
        ({"budget": 0}, "budget", "too small in my.yaml → budget: expected at least 1, got 0"),
        ({"budget": "3"}, "budget", "whole number"),
        ({"budget": 1.5}, "budget", "whole number in my.yaml → budget: got 1.5"),
        ({"budget": True}, "budget", "whole number"),
        ({"budget": 10**6}, "budget", "too large in my.yaml → budget: expected at most 100, got 1000000"),
        ({"target": "ada/watch"}, "target", "{set}"),
        ({"target": "watch-{set}"}, "target", "no repo id"),
        ({"target": "ada/{set}/x"}, "target", "no repo id"),
        ({"target": "ada/{date}-{set}"}, "target", "only"),
        ({"target": "ada/{set.__class__}"}, "target", "only"),
        ({"target": "ada/{set!r}"}, "target", "only"),
        ({"target": "ada/{set:>200}"}, "target", "only"),
        ({"target": "ada/{set"}, "target", "expected"),
        ({"recipe": None}, "recipe", "this is missing"),
        ({"recipe": {"method": 3}}, "method", "must be text"),
        ({"recipe": {"method": "ram", "agents": ["a/b"]}}, "agents", "no such key"),
        ({"recipe": {"method": "ram", "dtype": "int4"}}, "recipe", "dtype"),
        ({"recipe": {"method": "ram", "seed": -1}}, "seed", "at least 0"),
        ({"recipe": {"method": "magic"}}, "recipe", "magic"),
        ({"recipe": {"method": "ram", "parameters": [1]}}, "parameters", "must be a table"),
        ({"recipe": {"method": "ram", "parameters": {"alpha": 1}}}, "recipe", "alpha"),
        ({"join": "some"}, "join", "best: N"),
        ({"join": {"best": 2, "fixed": ["a/b", "a/c"]}}, "join", "best: N"),
        ({"join": {"fixed": []}}, "fixed", "at least two"),
        ({"join": {"fixed": ["a/b", "a/b"]}}, "fixed", "each once"),
        ({"join": {"fixed": ["a/b", "nonsense"]}}, "fixed", "no repo id"),
        ({"join": {"best": 2}}, "suite", "needs the suite"),
        ({"join": {"best": 2}, "suite": "zoo", "min_agents": 3}, "join", "less than min_agents"),
        ({"join": {"fixed": ["a/b", "a/c"]}, "min_agents": 3}, "min_agents", "fewer fixed"),
        ({"min_agents": 1}, "min_agents", "at least 2"),
        ({"suite": "../x"}, "suite", "there is no such suite"),
        ({"suite": "maths"}, "suite", "there are zoo, math, "),
        ({"license": "apache 2"}, "license", "an id of the Hub's list"),
        ({"license": ""}, "license", "an id of the Hub's list"),
        ({"recipe": {"method": "fisher"}}, "recipe", "calibration: fisher weighs"),
        ({"private": "yes"}, "private", "true or false"),
        ({"budgets": 3}, "budgets", "no such key: budgets"),
        ({"watch": "nothing"}, "watch", "no such kind"),
        ({"watch": ["agents"]}, "watch", "no such kind"),
    ],
)
def test_what_is_wrong_is_refused_with_its_field(changes, field, reason):
    with pytest.raises(RuleError) as refused:
        rule_from_yaml(yaml.safe_dump(rule_data(**changes)), "my.yaml")
    told = [str(p) for p in refused.value.problems if field in p.where and reason in str(p)]
    assert told, str(refused.value)
    assert "my.yaml" in told[0]
    assert not re.search(r"\^\[|pattern|Input|a valid", str(refused.value))  # in words, not as the check has it


def test_every_problem_is_listed():
    with pytest.raises(RuleError) as refused:
        rule_from_yaml(yaml.safe_dump(rule_data(budget=0, suite="A B", base=None)))
    assert {p.where.rpartition(" ")[2] for p in refused.value.problems} == {"budget", "suite", "base"}


@pytest.mark.parametrize(
    "text", ["", "- a", "just text", "a: &x 1\nb: *x", "name: a\nname: b", "x" * 70_000, "{" * 999]
)
def test_what_is_no_table_is_refused(text):
    with pytest.raises(RuleError):
        rule_from_yaml(text)


def test_a_broken_file_does_not_stop_the_others(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(rule_data(name="one")))
    (tmp_path / "b.yaml").write_text("nonsense")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(rule_data(name="one")))
    (tmp_path / "d.yaml").write_bytes(b"\xff\xfe\x00")
    for name, rule in (("e.yml", "two"), ("f.yaml", "three")):
        (tmp_path / name).write_text(yaml.safe_dump(rule_data(name=rule)))
    monkeypatch.setattr("workflows.watchers.rules.MAX_RULES", 5)
    found = load_rules(tmp_path)
    assert [rule.name for rule in found.rules] == ["one", "two"]
    assert [name for name, _ in found.broken] == ["b.yaml", "c.yaml", "d.yaml", "f.yaml"]
    assert found.broken[-1][1].what == "there are too many rules"
    missing = load_rules(tmp_path / "missing")
    assert (missing.rules, [name for name, _ in missing.broken]) == ((), ["missing"])


def test_kinds_are_found_by_themselves():
    kinds = registry()
    assert kinds["agents"].rule is AgentRule
    assert all(issubclass(kind, Watcher) and kind.kind == name for name, kind in kinds.items())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "Merges all fine-tunes of zoo/base by zoo, with RAM, once there are 2 and again with each new one."),
        (
            {"agents": {"tags": ["rl"], "lineage": "any", "max_parameters": "1.5B", "exclude": ["zoo/x", "zoo/y"]}},
            "Merges all models trained from zoo/base tagged rl of at most 1.50 B parameters but for zoo/x and zoo/y, "
            "with RAM, once there are 2 and again with each new one.",
        ),
        (
            {"join": {"best": 2}, "suite": "zoo", "agents": {"authors": ["a", "b", "c"], "lineage": "adapter"}},
            "Merges the best 2 on the leaderboard among the adapters of zoo/base by a, b or c, with RAM.",
        ),
        (
            {"join": {"fixed": ["zoo/a", "zoo/b"]}},
            "Merges zoo/a and zoo/b with RAM, again whenever the weights of one of them change.",
        ),
    ],
)
def test_a_rule_is_told_in_a_sentence(changes, told):
    rule = rule_of(**changes)
    assert registry()[rule.watch]().about(rule) == told
