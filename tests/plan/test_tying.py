"""A tied output head is one tensor: merged and counted once, wherever models store it."""

from collections.abc import Mapping
from typing import Any

import pytest
from builders import f32, llama_config, random_base, sparse_agent, tensor, write_model
from plan_helpers import CONFIG, SHAPES, assert_laid_out, model, names_of, plan, problems

import hubmerge
from hubmerge.errors import IncompatibleError
from hubmerge.sources.base import Model

Shapes = tuple[dict[str, tuple[int, ...]], dict[str, Any]]  # of the tensors; the config

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
WITH_HEAD = {**SHAPES, HEAD: (8, 4)}
TIED, UNTIED = CONFIG, {**CONFIG, "tie_word_embeddings": False}
SILENT = {k: v for k, v in CONFIG.items() if k != "tie_word_embeddings"}


def models(base: Shapes, one: Shapes, two: Shapes) -> tuple[Model, Model, Model]:
    """A base and two agents of these shapes and configs."""
    names = ("org/base", "org/a", "org/b")
    made = [model(name, shapes, config=config) for name, (shapes, config) in zip(names, (base, one, two), strict=True)]
    return made[0], made[1], made[2]


PLAIN, STORED, OWN = (SHAPES, TIED), (WITH_HEAD, TIED), (WITH_HEAD, UNTIED)
INSIDE = {**SILENT, "text_config": {"tie_word_embeddings": True}}
SMALL, LARGE = ({**SHAPES, HEAD: (6, 4)}, TIED), ({**SHAPES, HEAD: (9, 4)}, UNTIED)
TWO_EMBEDDINGS = ({**WITH_HEAD, "encoder.embed_tokens.weight": (8, 4)}, TIED)
ONCE = f"the stored {HEAD} is tied to {EMBEDDING}; it is merged once, as the latter"
# base, agents; the merged tensors, and what is said of a head
MERGED: dict[str, tuple[tuple[Model, Model, Model], Mapping[str, Any], list[str]]] = {
    "an agent's copy": (models(PLAIN, PLAIN, STORED), SHAPES, [f"org/b: {ONCE}"]),
    "the base's copy": (models(STORED, PLAIN, PLAIN), SHAPES, [f"org/base: {ONCE}"]),
    "copies of the base and an agent": (
        models(STORED, PLAIN, STORED),
        SHAPES,
        [f"org/{n}: {ONCE}" for n in ("base", "b")],
    ),
    "a copy in all": (models(STORED, STORED, STORED), SHAPES, [f"org/{n}: {ONCE}" for n in ("base", "a", "b")]),
    "no word and no head": (models((SHAPES, SILENT), PLAIN, (WITH_HEAD, SILENT)), SHAPES, [f"org/b: {ONCE}"]),
    "the word of the language model inside": (models((SHAPES, INSIDE), PLAIN, STORED), SHAPES, [f"org/b: {ONCE}"]),
    # as in Voxtral, which does not listen to it
    "the word of the language model inside, and a head": (models(*[(WITH_HEAD, INSIDE)] * 3), WITH_HEAD, []),
    "two embeddings, of which none is the head's": (models(*[TWO_EMBEDDINGS] * 3), TWO_EMBEDDINGS[0], []),
    # as in CSM, whose text head stands beside an embedding of audio codes
    "a head of another shape, whatever the config says": (models(*[SMALL] * 3), SMALL[0], []),
}


@pytest.mark.parametrize(("given", "names", "told"), MERGED.values(), ids=MERGED)
def test_a_tied_head_is_merged_and_counted_once(given, names, told):
    made = plan(*given)
    assert names_of(made) == list(names)
    assert [w for w in made.warnings if "tie_word_embeddings" not in w] == told
    assert_laid_out(made)


@pytest.mark.parametrize("config", [UNTIED, SILENT], ids=["untied", "silent"])
def test_a_tied_agents_embedding_stands_for_its_missing_head(config):
    agent = (SHAPES, TIED if config is UNTIED else SILENT)
    made = plan(*models((WITH_HEAD, config), (WITH_HEAD, config), agent))
    assert [i.entry.name for t in made.tensors() if t.name == HEAD for i in t.inputs] == [HEAD, HEAD, EMBEDDING]
    assert any(f"org/b: {HEAD} is tied to {EMBEDDING}, which is read in its place" in w for w in made.warnings)
    assert_laid_out(made)


def test_an_ignored_embedding_is_not_read_as_a_head_either():
    """The base's embedding, which the agent has in place of its own, is the head of neither."""
    given = models(OWN, OWN, PLAIN)
    (told,) = problems(*given, ignore=[EMBEDDING])
    assert f"missing tensors in org/b@6f72672f6200: expected {HEAD}" in told
    assert f'ignore: ["{EMBEDDING}", "{HEAD}"]' in told
    made = plan(*given, ignore=[EMBEDDING, HEAD])
    assert [t.name for t in made.tensors() if t.action == "copy"] == [EMBEDDING, HEAD]


def test_no_head_is_read_for_an_embedding_that_was_left_out_by_the_agents_own_name():
    wrapped = {f"model.{name}": shape for name, shape in WITH_HEAD.items()}
    given = models((wrapped, TIED), (wrapped, TIED), STORED)
    assert plan(*given).warnings
    said = problems(*given, ignore=[EMBEDDING])
    assert f"missing tensors in org/b@6f72672f6200: expected model.{EMBEDDING}" in said[0]


def test_a_tied_head_is_not_said_to_be_kept():
    made = plan(*models(STORED, PLAIN, STORED), ignore=[HEAD])
    assert names_of(made) == list(SHAPES)
    assert [w for w in made.warnings if HEAD in w] == [f"org/base: {ONCE}"]


REFUSED: dict[str, tuple[tuple[Model, Model, Model], str]] = {
    "a head of its own": (
        models(PLAIN, PLAIN, OWN),
        "from, or untie a copy of this one: store its model.embed_tokens.weight as lm_head",
    ),
    "no head": (models(OWN, OWN, (SHAPES, UNTIED)), f"missing tensors in org/b@6f72672f6200: expected {HEAD}"),
    "a head too many": (
        models((SHAPES, UNTIED), (SHAPES, UNTIED), OWN),
        "tensors that the base does not have",
    ),
    "an embedding of another shape": (models(LARGE, LARGE, PLAIN), f"{HEAD}: 9×4 → 8×4"),
    # nothing else is said of it
    "another architecture": (
        models(PLAIN, PLAIN, (WITH_HEAD, {**UNTIED, "architectures": ["QwenForCausalLM"]})),
        "another architecture",
    ),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
def test_a_head_that_does_not_fit_is_refused(given, said):
    (problem,) = problems(*given)
    assert said in problem


@pytest.mark.parametrize("differing", [0, 1, 2], ids=["base", "first agent", "second agent"])
def test_a_head_whose_values_differ_from_the_tied_embedding_is_refused_before_a_shard_is_done(tmp_path, differing):
    """transformers 5 loads both then, and ties copies of equal values alone."""
    folders = []
    base = random_base(0)
    for k, tensors in enumerate((base, sparse_agent(base, 0.1, 1), sparse_agent(base, 0.1, 2))):
        head = f32(tensors[EMBEDDING])
        head[-1, -1] += float(k == differing)
        stored = {**tensors, HEAD: tensor(head)}
        folders.append(write_model(tmp_path / str(k), stored, config=llama_config(stored, tie_word_embeddings=True)))
    recipe = {"base": str(folders[0]), "agents": [str(f) for f in folders[1:]], "method": "ram"}
    with (
        pytest.warns(UserWarning, match="it is merged once"),
        pytest.raises(IncompatibleError, match=rf"{HEAD} of .*/{differing}@.*: expected the values of {EMBEDDING}"),
    ):
        hubmerge.merge(recipe, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_tied_head_that_is_stored_in_place_of_the_embedding_stands_for_it():
    """safetensors' save_model keeps the one of two names that is first in the alphabet."""
    alone = ({**{n: s for n, s in SHAPES.items() if n != EMBEDDING}, HEAD: SHAPES[EMBEDDING]}, TIED)
    made = plan(*models(PLAIN, alone, PLAIN))
    assert [i.entry.name for t in made.tensors() if t.name == EMBEDDING for i in t.inputs] == [
        EMBEDDING,
        HEAD,
        EMBEDDING,
    ]


COPIES = {f"{part}.weight": (8, 4) for part in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")}
SHARED = {"shared.weight": (8, 4), "encoder.block.0.wo.weight": (4, 4)}
T5 = {**UNTIED, "architectures": ["T5ForConditionalGeneration"]}


@pytest.mark.parametrize(
    ("config", "kept"), [(TIED, []), (T5, ["lm_head.weight"])], ids=["with the head", "but for the head"]
)
def test_copies_of_a_shared_table_that_not_all_models_store_are_merged_once(config, kept):
    """As old checkpoints of T5 and BART have them; a copy that stayed the base's would be loaded as another table."""
    plain = {**SHARED, **dict.fromkeys(kept, (8, 4))}
    made = plan(*models(({**COPIES, **SHARED}, config), (plain, config), (plain, config)))
    assert sorted(names_of(made)) == sorted(plain)
    (shared,) = (t for t in made.tensors() if t.name == "shared.weight")
    compared, copy = [], shared.inputs[0].copy
    while copy is not None:
        compared, copy = [copy.entry.name, *compared], copy.copy
    assert compared == [n for n in COPIES if n not in kept]


def test_a_copy_of_a_shared_table_that_the_config_unties_is_still_missing():
    assert "missing tensors" in problems(*models(({**COPIES, **SHARED}, UNTIED), *[(SHARED, UNTIED)] * 2))[0]


# copies that BERT, Whisper and SeamlessM4T may store, and of what
ELSEWHERE = {
    "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight", (8, 4)),
    "cls.predictions.decoder.bias": ("cls.predictions.bias", (8,)),
    "proj_out.weight": ("model.decoder.embed_tokens.weight", (8, 4)),
    "lm_head.weight": ("transformer.word_embeddings.weight", (8, 4)),
    "text_decoder.embed_tokens.weight": ("shared.weight", (8, 4)),
}


@pytest.mark.parametrize("holders", [(0,), (1,), (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize("ignore", [False, True], ids=["", "ignored"])
@pytest.mark.parametrize("copy", ELSEWHERE)
def test_a_copy_of_any_name_that_not_all_models_store_is_merged_once(copy, ignore, holders):
    """The advice was to ignore it; a copy that stayed the base's would be loaded as another table."""
    source, shape = ELSEWHERE[copy]
    plain = {source: shape, "encoder.layer.0.dense.weight": (4, 4)}
    made = plan(
        *models(*[({**plain, copy: shape} if m in holders else plain, SILENT) for m in range(3)]),
        ignore=[copy] * ignore,
    )
    assert names_of(made) == list(plain)
    (table,) = (t for t in made.tensors() if t.name == source)
    assert [m for m in range(3) if table.inputs[m].copy] == [m for m in holders if not (ignore and m)]


def test_who_is_told_to_ignore_what_may_be_a_copy_is_told_so():
    """As of T5Gemma's head beside its two embeddings: an ignored copy is loaded beside the merged table."""
    plain = {"encoder.embed_tokens.weight": (8, 4), "decoder.embed_tokens.weight": (8, 4), "norm.weight": (4,)}
    head = {"lm_head.out_proj.weight": (8, 4)}
    (told, _) = problems(*models(({**plain, **head}, TIED), (plain, TIED), (plain, TIED)))
    assert "unless they are tied to others (then take them out of a copy of the base), put this line" in told
    (told, _) = problems(*models(({**plain, "mask": (9,)}, TIED), (plain, TIED), (plain, TIED)))
    assert "To keep the base's, put this line" in told


def test_a_table_is_no_copy_where_a_config_unties_it_or_it_has_no_row_for_each_token():
    plain = {"wte.table": (8, 4), "norm.weight": (4,)}
    for more, config in (({"out.weight": (8, 4)}, UNTIED), ({"out.weight": (9, 4)}, TIED)):
        assert "missing tensors" in problems(*models(({**plain, **more}, config), *[(plain, config)] * 2))[0]
