"""A recipe says everything that decides a merge, refuses what it does not know, and its identity is its meaning."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubmerge.errors import RecipeError
from hubmerge.methods import registry
from hubmerge.recipe.file import load_recipe, model_here
from hubmerge.recipe.file import recipe_from_yaml as from_yaml
from hubmerge.recipe.model_name import ModelRef
from hubmerge.recipe.recipe import MAX_AGENTS, MAX_RECIPE_BYTES, Recipe, merge_identity, recipe_from_dict
from hubmerge.text.plain_yaml import dump_plain_yaml, load_plain_yaml

FULL = """
base: org/base@v1.0
agents:
  - org/agent-a
  - {model: org/agent-b@main, weight: 0.8}
  - ./folder/agent-c
method: ram_plus
parameters: {r: 0.25, alpha: 2}
dtype: bfloat16
rounding: stochastic
ignore: v_head.*
seed: 7
"""


CONTENT: dict[str, Any] = {"base": "org/base", "agents": ["org/a", "org/b"], "method": "ram"}


def recipe(**changes: Any) -> Recipe:
    return recipe_from_dict({**CONTENT, **changes})


def refused(content: Any) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        from_yaml(content, "r.yaml") if isinstance(content, str) else recipe_from_dict(content, "r.yaml")
    assert "r.yaml" in str(caught.value)
    return caught.value


def test_yaml_in_and_out_is_the_same_recipe():
    first = from_yaml(FULL)
    assert from_yaml(first.to_yaml()) == first
    assert (first.base.id, first.base.revision, first.base.local) == ("org/base", "v1.0", False)
    assert first.agents[2].model.local
    assert first.weights == (1.0, 0.8, 1.0)
    assert (first.dtype, first.rounding, first.ignore, first.seed) == ("bfloat16", "stochastic", ("v_head.*",), 7)


@pytest.mark.parametrize("method", sorted(registry()))
def test_every_method_survives_yaml_with_its_defaults_written_out(method):
    first = recipe(method=method)
    assert from_yaml(first.to_yaml()) == first
    defaults = registry()[method].parse_parameters({}).model_dump(mode="json", exclude_none=True)
    assert dict(first.parameters) == defaults


def test_a_recipe_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        recipe().seed = 1  # type: ignore[misc]


def test_every_wrong_field_is_listed_at_once():
    wrong = {
        "base": "not a hub id",
        "agents": ["org/a", {"model": "org/b", "weight": "heavy"}, {"model": 3}, "../..@x://y", {"modle": "org/c"}],
        "dtype": "int8",
        "rounding": "up",
        "seed": -1,
        "colour": "red",
    }
    places = [problem.where.removeprefix("r.yaml → ") for problem in refused({**wrong, "method": "average"}).problems]
    every = {"base", "agent 2 → weight", "agent 3 → model", "agent 4 → model", "agent 5 → modle"}
    assert {"method", "dtype", "rounding", "seed", "colour", *every} <= set(places)


def test_wrong_parameters_are_named_beside_other_faults():
    error = refused({"base": "", "agents": ["org/a"], "method": "ram_plus", "parameters": {"r": -1, "beta": 2}})
    assert [p.where for p in error.problems] == [
        "r.yaml → base",
        "r.yaml → parameters → r",
        "r.yaml → parameters → beta",
    ]
    assert error.problems[2].expected.startswith("epsilon, r, alpha")


@pytest.mark.parametrize("missing", ["base", "agents", "method"])
def test_a_missing_field_is_named(missing):
    (problem,) = refused({key: value for key, value in CONTENT.items() if key != missing}).problems
    assert problem.where == f"r.yaml → {missing}"


@pytest.mark.parametrize(
    "changes",
    [
        {"agents": {"org/a": 1}},
        {"agents": [["org/a"]]},
        *({"agents": [{"model": "org/a", "weight": weight}]} for weight in (float("nan"), float("inf"), "1", 1e9)),
        {"seed": 0.5},
        {"method": None},
        {"parameters": {1: 2}},
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(changes):
    refused({**CONTENT, **changes})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            "   ",
            "a b",
            "org/",
            "org/..",
            "org/a..b",
            "org/a--b",
            "org/x@../main",
            "org/x@a/../main",
            "org/x@ma in",
            "org/x@-d",
        ),
        *("org/" + "x" * 97, "./" + "x" * 4095, "https://huggingface.co/org/x", "file:///etc/passwd"),
        *("org-/x", "org./x", "org/x.git", "x.git"),
        *("org\0/x", "./x\0y", "órg/x", "org/x?y=1", "org/x#y", "org%2Fx"),
    ],
)
def test_a_model_that_is_neither_a_hub_id_nor_a_folder_is_refused(name):
    refused({**CONTENT, "base": name})


@pytest.mark.parametrize("folder", ["./a", "../a", "/a/b", "~/a", "a/b/c", "./org/x@main"])
def test_a_path_is_a_folder(folder):
    model = recipe(base=folder).base
    assert (model.id, model.revision, model.local) == (folder, None, True)
    assert str(model) == folder


@pytest.mark.parametrize("revision", ["main", "refs/pr/3", "v1.0", "a" * 40, "feature/x_y-z"])
def test_branches_tags_and_commits_are_revisions(revision):
    assert recipe(base=f"org/base@{revision}").base.revision == revision


# --- identity ----------------------------------------------------------------------------------------------------

BASE = ModelRef("hub", "org/base", "0" * 40, "main")
AGENTS = (ModelRef("hub", "org/a", "a" * 40, "main"), ModelRef("hub", "org/b", "b" * 40, "main"))


def identity(
    first: Recipe | None = None, base: ModelRef = BASE, agents: tuple[ModelRef, ...] = AGENTS, target: str = ""
) -> str:
    return merge_identity(first or recipe(), base, agents, target)


def test_the_identity_is_the_sha256_of_this_very_text():
    # a change of this value makes every published merge unknown to its own job
    text = (
        '{"agents":[["org/a@' + "a" * 40 + '",1.0],["org/b@' + "b" * 40 + '",1.0]],"base":"org/base@' + "0" * 40
        + '","dtype":null,"method":"ram","parameters":{"epsilon":1e-05},"rounding":null,"seed":0,"target":""}'
    )  # fmt: skip
    assert identity() == hashlib.sha256(text.encode()).hexdigest()


def test_the_identity_changes_with_every_field():
    other = ModelRef("hub", "org/c", "c" * 40, "main")
    changes: dict[str, list[Any]] = {"method": ["linear"], "parameters": [{"epsilon": 2e-5}], "seed": [1]}
    changes |= {"dtype": ["float32", "bfloat16"], "rounding": ["nearest", "stochastic"]}
    changes["ignore"] = [["x"], ["x", "y"]]
    layers = [{"layers": [0, 2], "value": 0.5}]
    weights = (0.5, [0.5, 0.6], [0.6, 0.5], [{"filter": "mlp", "value": 0.5}], layers)
    changes["agents"] = [[{"model": "org/a", "weight": weight}, "org/b"] for weight in weights]
    changes["agents"].append(["org/a", {"model": "org/b", "weight": 0.5}])
    densities = ({}, {"density": 0.3})
    ties = [{"method": "ties", "agents": [{"model": "org/a", "parameters": own}, "org/b"]} for own in densities]
    ties.append({"method": "ties", "parameters": {"lambda": [0.5, 1]}})
    every = [
        identity(),
        identity(base=ModelRef("hub", "org/base", "1" * 40, "main")),
        identity(base=ModelRef("hub", "fork/base", "0" * 40, "main")),
        identity(agents=AGENTS[::-1]),
        identity(agents=(AGENTS[0], other)),
        identity(recipe(agents=["org/a", "org/b", "org/c"]), agents=(*AGENTS, other)),
        *(identity(recipe(**{key: value})) for key, values in changes.items() for value in values),
        *(identity(recipe(**fields)) for fields in ties),
        identity(target="ada/merge"),
        identity(target="ada/other"),
    ]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    "spelled",
    [
        "method: ram\nagents:\n- org/a\n- model: org/b\nbase: 'org/base'\n",
        "base: org/base@main\nagents: [{model: org/a, weight: [1, 1]}, {weight: 1.0, model: org/b}]\nmethod: ram",
        "base: org/base\nagents: [org/a, org/b]\nmethod: ram\nparameters: {epsilon: 0.00001}\ndtype: null\nseed: 0",
        "base: org/base\nagents: [org/a, org/b]\nmethod: ram\nparameters:\nrounding:\nignore: []\n",
    ],
)
def test_the_identity_does_not_change_with_the_spelling(spelled):
    assert identity(from_yaml(spelled)) == identity()
    assert identity(recipe(ignore=["y", "x", "x"])) == identity(recipe(ignore=["x", "y"]))


def test_a_model_is_what_it_holds_whatever_branch_was_asked_for_and_wherever_its_folder_lies():
    assert identity(base=ModelRef("hub", "org/base", "0" * 40, "v1")) == identity()
    here, there = ModelRef("local", "./base", "d" * 40), ModelRef("local", "/else/where", "d" * 40)
    assert identity(base=here) == identity(base=there) != identity()


def test_a_pinned_recipe_names_every_hub_model_at_its_sha():
    first = from_yaml(FULL)
    refs = (*AGENTS, ModelRef("local", "./folder/agent-c", "e" * 40))
    pinned = first.pinned(BASE, refs)
    assert str(pinned.base) == "org/base@" + "0" * 40
    assert [str(a.model) for a in pinned.agents] == ["org/a@" + "a" * 40, "org/b@" + "b" * 40, "./folder/agent-c"]
    assert pinned.weights == first.weights
    assert merge_identity(pinned, BASE, refs) == merge_identity(first, BASE, refs)


@pytest.mark.parametrize("named", ["base", "org/base", "org/b"])
def test_the_tokenizer_is_that_of_the_same_model_after_all_are_pinned(named):
    first = recipe(tokenizer=named)
    pinned = recipe_from_dict(first.pinned(BASE, AGENTS).to_dict())
    assert first.tokenizer_of == pinned.tokenizer_of == (2 if named == "org/b" else 0)
    assert identity(first) == identity(pinned) != identity()


def test_the_tokenizer_is_that_of_the_same_model_where_its_name_means_a_folder(tmp_path):
    (tmp_path / "org" / "b").mkdir(parents=True)
    path = tmp_path / "r.yaml"
    path.write_text(recipe(tokenizer="org/b").to_yaml())
    assert (load_recipe(path).tokenizer, load_recipe(path).tokenizer_of) == ("./org/b", 2)


# --- YAML --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: &b org/base\nagents: [*b, *b]\nmethod: ram", "alias"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
            "d: &d [*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e]",
            "alias",
        ),
        ("base: &b org/base\nagents: [org/a]\nmethod: ram", "alias"),
        ("ignore: *.bias", "and quote what begins with a sign (`'*.bias'`)"),
        ("base: !!python/object/apply:os.system ['true']", "tags"),
        ("base: !!str org/base", "tags"),
        ("base: org/base\nbase: org/other\nagents: [org/a]\nmethod: ram", "twice"),
        ("- base", "table"),
        ('base: "\\UFFFFFFFF"', "no character"),
        ("base: org/base\nagents: [{model: org/a, weight: 1, weight: 2}]\nmethod: ram", "twice"),
        ("? [base]\n: org/base", "a key must be a word"),
        ("base: [", "YAML"),
        ("", "table"),
        ("base: org/base\n---\nbase: org/other", "got a second document (line 2, column 1)"),
        ("[" * 2_000, "nested too deeply"),
        ("base: \0", "YAML"),
        ("seed: " + "9" * 5000, "digits"),
        ('base: "\\U00110000"', "no character"),
        ('base: "org/\\ud800"', "half a character"),
        # more digits than lighteval lets Python read, where it was imported before
        ("%YAML 1." + "9" * 60_000 + "\n---\nbase: org/base", "version"),
        ("x" * (MAX_RECIPE_BYTES + 1), "too long"),
    ],
)
def test_yaml_that_is_no_plain_data_is_refused(text, words):
    assert words in str(refused(text))


@pytest.mark.parametrize("more", [{"\ud800": 1}, {"parameters": {"r\ud800": []}}])
def test_half_a_character_in_a_key_is_refused(more):
    refusal = str(refused({**CONTENT, "method": "ram_plus", **more}))
    assert "half a character" in refusal
    assert refusal.isprintable()


def test_an_argument_that_is_no_utf_8_is_refused_in_words():
    with pytest.raises(RecipeError, match="E_RECIPE: a model's name holds a zero byte or half a character in the comm"):
        model_here("./\udce9", print)


def test_numbers_are_read_as_people_write_them():
    text = "[010, 1e-5, 1_000, 1:30, 0x10, no, on, 2024-01-01, .5, -1.5E3, true, null, ~, 'true']"
    assert load_plain_yaml(text) == [
        10, 1e-5, "1_000", "1:30", "0x10", "no", "on", "2024-01-01", 0.5, -1500.0, True, None, None, "true",
    ]  # fmt: skip


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20),
    st.sampled_from(["1e-5", "010", "no", "1:30", "null", "~", ".inf", "<<", "=", "2024-01-01", "- x", "a: b", "#"]),
)


@settings(deadline=None, max_examples=60)  # a busy machine passes any deadline
@given(
    st.recursive(
        _scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["a", "b", "c d", "1", "no", ""]), inner)
        ),
        max_leaves=12,
    )
)
def test_plain_data_survives_yaml(data):
    assert load_plain_yaml(dump_plain_yaml({"data": data})) == {"data": data}


def test_a_file_that_cannot_be_read_or_is_in_another_encoding_is_refused(monkeypatch, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"base: \xff\xfe")
    with (tmp_path / "written").open("w") as unreadable:
        monkeypatch.setattr("sys.stdin", unreadable)
        for path in (broken, Path("-")):
            with pytest.raises(RecipeError, match="cannot be read"):
                load_recipe(path)


def test_paths_begin_at_the_file_and_of_a_pipe_at_the_working_folder(tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text(FULL)
    assert load_recipe(path).folder == tmp_path
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(FULL)
    try:
        assert load_recipe(Path(f"/dev/fd/{reading}")) == from_yaml(FULL).in_folder(Path())
    finally:
        os.close(reading)


# --- what is refused ---------------------------------------------------------------------------------------------

ROWS = {"data": "org/rows", "prompt": "q", "answer": "a"}
NOTHING = "every agent has the weight 0, so that nothing would be merged"


@pytest.mark.parametrize(
    ("change", "what", "step"),
    [
        ({"base": ""}, "no model is named", "Name the model that the agents were trained from."),
        ({"agents": []}, "there is no agent", "List the models to merge."),
        ({"agents": ["org/a", " "]}, "no model is named", "Name the model."),
        ({"agents": [{"model": ""}, "org/b"]}, "no model is named", "Name the model."),
        ({"base": "https://hub/org/a"}, "this is a URL, where a Hub id alone is needed", "Write org/name"),
        (
            {"base": {"id": "../../etc", "local": True}},
            "a model is written as text: org/name, org/name@revision or ./folder",
            "",
        ),
        ({"agents": ["https://hub/org/a"]}, "this is a URL, where a Hub id alone is needed", "Write org/name"),
        ({"agents": [{"model": "org/a", "weight": True}]}, "a number is needed", ""),
        ({"seed": np.int64(3)}, "a number is needed", ""),
        *(({"seed": seed}, "a number is needed", "") for seed in (True, "0")),
        ({"seed": 2**63}, "this must be less than 9223372036854775808", ""),
        ({"agents": "org/a"}, "agents must be a list of models", ""),
        ({"agents": [{"model": "org/a", "weight": np.float32(0.5)}]}, "a number is needed", ""),
        ({"agents": np.array(["org/a", "org/b"])}, "agents must be a list of models", ""),
        ({"agents": [None]}, "this must be text, or a table", ""),
        ({"agents": [f"org/a{n}" for n in range(MAX_AGENTS + 1)]}, "there are more than 32 agents", ""),
        ({"agents": [{"model": f"org/{n}", "weight": 0} for n in "ab"]}, NOTHING, "Give one another weight."),
        ({"colour": 1}, "there is no such key", ""),
        ({5: "org/a"}, "a key must be text", ""),
        ({"method": 3}, "this must be text", ""),
        ({"parameters": [1]}, "this must be a table", ""),
        ({"dtype": "int3"}, "this must be 'float32', 'bfloat16' or 'float16'", ""),
        *(({"calibration": {**ROWS, "max_pairs": n}}, "this must be a valid integer", "") for n in (True, "8", 8.0)),
    ],
)
def test_what_is_wrong_is_one_problem_in_words_of_the_recipe(change, what, step):
    [problem] = refused({**CONTENT, **change}).problems
    assert problem.what == what
    assert problem.next_step.startswith(step)
    if what in ("no model is named", "there is no agent", NOTHING):  # the words say it
        assert problem.got == ""


def test_one_of_the_agents_may_weigh_nothing():
    assert recipe(agents=[{"model": "org/a", "weight": 0}, "org/b"]).weights == (0.0, 1.0)


# --- numbers that differ from tensor to tensor ---


def varying(weight: Any = 1.0, method: str = "ties", parameters: Any = None, own: Any = None) -> dict[str, Any]:
    agents = [{"model": "org/a", "weight": weight, "parameters": own or {}}, "org/b"]
    return {"base": "org/base", "agents": agents, "method": method, "parameters": parameters or {}}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ([0, 0.5, 1], [0.0, 0.5, 1.0]),
        ([0.25, 0.25], 0.25),
        ([{"value": 2}, {"filter": "mlp", "value": 3}], 2.0),
        ([{"filter": "mlp", "value": [1, 2]}, {"value": 3}], [{"filter": "mlp", "value": [1.0, 2.0]}, {"value": 3.0}]),
        ([{"layers": [0, 4], "value": 1}], [{"layers": [0, 4], "value": 1.0}]),
    ],
)
def test_a_weight_over_layers_or_by_rules_survives_yaml_and_is_one_number_where_it_says_so(written, read):
    recipe = recipe_from_dict(varying(written))
    again = from_yaml(recipe.to_yaml())
    assert again.to_dict() == recipe.to_dict()
    assert recipe.to_dict()["agents"][0] == {"model": "org/a", "weight": read}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (varying([]), "a list over the layers has 1 to"),
        (varying([1, "2"]), "a number is needed"),
        (varying([1, True]), "a number is needed"),
        (varying([1, float("nan")]), "a finite number"),
        (varying({"value": 1}), "a number, a list of numbers over the layers, or a list of"),
        (varying([{"filter": "mlp"}]), "a rule has `value`"),
        (varying([{"filter": "", "value": 1}]), "a filter is a part of a tensor's name"),
        (varying([{"filters": "mlp", "value": 1}]), "a rule has `value`"),
        (varying([{"layers": [4, 4], "value": 1}]), "layers [4, 4] hold no layer"),
        (varying([{"layers": [0, 1.5], "value": 1}]), "layers are the first"),
        (varying([1, 101]), "between -100 and 100"),
        (varying([1.0] * 1025), "a list over the layers has 1 to 1024 numbers"),
        (varying([{"filter": f"f{n}", "value": 1} for n in range(257)]), "at most 256 rules"),
        (varying() | {"agents": [{"model": "org/a", "weight": [0, 0]}]}, "every agent has the weight 0"),
        (varying(parameters={"density": [0.5, 0]}), "this must be greater than 0"),
        (varying(parameters={"density": [0.5, 1]}), "density must be one value for all tensors; with ties the weights"),
        (varying(parameters={"trim_scope": ["model", "tensor"]}), "trim_scope"),
        (varying(method="ram", parameters={"epsilon": [0.0, 1e-4]}), "epsilon must be one value for all tensors"),
        (varying(own={"lambda": 0.5}), "lambda is one for all agents"),
        (varying(own={"densty": 0.5}), "Did you mean density?"),
        (varying(own={"density": 2}), "agent 1 → parameters → density"),
        (varying(own={"density": [0.5, 1]}), "density must be one value for all tensors"),
    ],
)
def test_what_cannot_differ_or_is_no_number_is_refused(content, said):
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(content)
    assert said in str(caught.value)


def test_own_parameters_of_every_agent_and_the_tokenizer_are_told_at_once():
    wrong = varying(own={"density": 2}) | {"tokenizer": "org/z"}
    wrong["agents"] = [*wrong["agents"], {"model": "org/c", "parameters": {"lambda": 1, "density": [0.5, 1]}}]
    places = [problem.where.removeprefix("r.yaml → ") for problem in refused(wrong).problems]
    assert places == ["agent 1 → parameters → density", f"agent {len(wrong['agents'])} → parameters", "tokenizer"]


def test_the_identity_covers_what_differs_and_is_what_it_was_where_nothing_does():
    refs = [ModelRef("hub", f"org/{n}", f"{i:040x}") for i, n in enumerate(("base", "a", "b"))]

    def identity(content: dict[str, Any]) -> str:
        return merge_identity(recipe_from_dict(content), refs[0], tuple(refs[1:]))

    plain = varying(0.5)
    assert identity(plain) == identity(varying([0.5, 0.5])) == identity(varying([{"value": 0.5}]))
    assert identity(plain) == "a317dabcb29d7188853e07f37159cc0d20a5802b68f960cc252e80d1757df90d"
    others = [
        varying([0.5, 0.6]),
        varying([0.6, 0.5]),
        varying([{"filter": "mlp", "value": 0.5}]),
        varying([{"layers": [0, 2], "value": 0.5}]),
        varying(0.5, own={"density": 0.2}),
        varying(0.5, parameters={"lambda": [0.5, 1]}),
    ]
    assert len({identity(one) for one in (plain, *others)}) == len(others) + 1
