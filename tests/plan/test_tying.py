"""A tied output head is one tensor: merged and counted once, wherever models store it."""

from __future__ import annotations

from pathlib import Path

from builders import T, llama_config, random_base, sparse_agent, write_model
from plan_helpers import BASE, CONFIG, NOWHERE, SHAPES, A, B, assert_laid_out, model, names_of, plan, plan_of, problems

from hubmerge.plan.plan import Plan
from hubmerge.sources.reader import LocalOrFetched, TensorReader

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
WITH_HEAD = {**SHAPES, HEAD: (8, 4)}
TIED, UNTIED = CONFIG, {**CONFIG, "tie_word_embeddings": False}
SILENT = {k: v for k, v in CONFIG.items() if k != "tie_word_embeddings"}


def head_inputs(made: Plan) -> list[str]:
    return [i.entry.name for t in made.tensors() if t.name == HEAD for i in t.inputs]


def test_an_agents_stored_copy_of_a_tied_head_is_ignored():
    made = plan(BASE, A, model("org/b", WITH_HEAD))
    assert names_of(made) == list(SHAPES)
    assert made.warnings == (
        "org/b: the stored lm_head.weight is tied to model.embed_tokens.weight; it is merged once, as the latter",
    )


def test_a_tied_head_that_the_base_stores_is_counted_once():
    base = model("org/base", WITH_HEAD)
    for agents in ((A, B), (A, model("org/b", WITH_HEAD)), (model("org/a", WITH_HEAD), model("org/b", WITH_HEAD))):
        made = plan(base, *agents)
        assert names_of(made) == list(SHAPES)
        assert made.elements == 60
        assert "org/base: the stored lm_head.weight" in made.warnings[0]
        assert_laid_out(made)


def test_a_tied_agents_embedding_stands_for_its_missing_head():
    base = model("org/base", WITH_HEAD, config=UNTIED)
    made = plan(base, model("org/a", WITH_HEAD, config=UNTIED), model("org/b", SHAPES, config=TIED))
    assert head_inputs(made) == [HEAD, HEAD, EMBEDDING]
    assert "org/b: lm_head.weight is tied to model.embed_tokens.weight, which is read in its place" in made.warnings[0]
    assert_laid_out(made)


def test_a_config_that_says_nothing_ties_where_no_head_is_stored():
    silent = model("org/base", SHAPES, config=SILENT)
    assert names_of(plan(silent, A, model("org/b", WITH_HEAD, config=SILENT))) == list(SHAPES)
    storing = model("org/base", WITH_HEAD, config=SILENT)
    made = plan(storing, model("org/a", WITH_HEAD, config=SILENT), model("org/b", SHAPES, config=SILENT))
    assert head_inputs(made) == [HEAD, HEAD, EMBEDDING]


def test_the_config_of_the_language_model_inside_counts():
    nested = {**SILENT, "text_config": {"tie_word_embeddings": True}}
    made = plan(model("org/base", WITH_HEAD, config=nested), A, B)
    assert names_of(made) == list(SHAPES)


def test_a_head_of_its_own_does_not_fit_a_tied_base():
    (problem,) = problems(BASE, A, model("org/b", WITH_HEAD, config=UNTIED))
    assert "an output head of its own" in problem


def test_of_another_architecture_nothing_else_is_said():
    config = {**UNTIED, "architectures": ["QwenForCausalLM"]}
    (problem,) = problems(BASE, A, model("org/b", WITH_HEAD, config=config))
    assert "another architecture" in problem


def test_an_untied_head_that_is_missing_is_missing():
    base = model("org/base", WITH_HEAD, config=UNTIED)
    (problem,) = problems(base, model("org/a", WITH_HEAD, config=UNTIED), model("org/b", SHAPES, config=UNTIED))
    assert "missing tensors" in problem
    assert HEAD in problem


def test_an_untied_base_without_a_head_takes_no_head():
    base = model("org/base", SHAPES, config=UNTIED)
    (problem,) = problems(base, model("org/a", SHAPES, config=UNTIED), model("org/b", WITH_HEAD, config=UNTIED))
    assert "tensors that the base does not have" in problem


def test_two_embeddings_leave_it_open_what_the_head_is_tied_to():
    shapes = {**WITH_HEAD, "encoder.embed_tokens.weight": (8, 4)}
    names = ("org/base", "org/a", "org/b")
    made = plan(*(model(n, shapes, config=TIED) for n in names))
    assert names_of(made) == list(shapes)


def test_an_embedding_that_stands_for_a_head_must_have_its_shape():
    base = model("org/base", {**SHAPES, HEAD: (9, 4)}, config=UNTIED)
    listed = problems(base, model("org/a", {**SHAPES, HEAD: (9, 4)}, config=UNTIED), model("org/b", config=TIED))
    assert "lm_head.weight: 9×4 → 8×4" in listed[0]


def test_the_reader_takes_the_bytes_of_the_embedding_for_a_tied_head(tmp_path: Path):
    base: dict[str, T] = random_base(0)
    first = sparse_agent(base, 0.1, 1)
    tied = {n: t for n, t in sparse_agent(base, 0.1, 2).items() if n != HEAD}
    folders = [write_model(tmp_path / "base", base), write_model(tmp_path / "a", first)]
    folders.append(write_model(tmp_path / "b", tied, config=llama_config(tied, tie_word_embeddings=True)))
    made = plan_of(*folders)
    (head,) = (t for t in made.tensors() if t.name == HEAD)
    with TensorReader(made.models, LocalOrFetched(NOWHERE, tmp_path)) as reader:
        raw = reader.raw(2, head.inputs[2], 0, head.elements)
    assert raw.tobytes() == tied[EMBEDDING].raw.tobytes()


def test_a_head_of_another_shape_is_tied_to_nothing_whatever_the_config_says():
    """As in CSM, whose text head stands beside an embedding of audio codes."""
    shapes = {**SHAPES, HEAD: (6, 4)}
    made = plan(model("org/base", shapes), model("org/a", shapes), model("org/b", shapes))
    assert names_of(made) == list(shapes)
    assert made.warnings == ()
    assert_laid_out(made)
