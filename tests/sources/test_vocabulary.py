"""An agent that added tokens is merged where all have rows, and brings its rows, its tokenizer and its vocab_size."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import T, f32, llama_config, random_base, sparse_agent, tensor, tokenizer_files, write_model
from plan_helpers import NOWHERE, model, plan_of, refused
from source_helpers import lora, pair, write_adapter

from hubmerge.errors import FormatError, HubmergeError, IncompatibleError
from hubmerge.plan.files import folder_files
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.reader import LocalOrFetched, TensorReader
from hubmerge.sources.vocabulary import token_table, with_vocab_size

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Q = "model.layers.0.self_attn.q_proj"
BASE = random_base(0)  # 40 rows


def grown(tensors: dict[str, T], rows: int, seed: int = 0) -> dict[str, T]:
    """The tensors with rows added to embedding and head."""
    rng = np.random.default_rng(seed)
    return {
        n: tensor(np.concatenate([f32(t), rng.normal(0, 1, (rows, t.shape[1])).astype(np.float32)]), t.dtype)
        if n in (EMBED, HEAD)
        else t
        for n, t in tensors.items()
    }


def cut(tensors: dict[str, T], rows: int) -> dict[str, T]:
    """The tensors with the first rows of embedding and head."""
    return {n: tensor(f32(t)[:rows], t.dtype) if n in (EMBED, HEAD) else t for n, t in tensors.items()}


def tokenizer(vocab: int = 40, added: dict[str, int] | None = None, **words: int) -> bytes:
    return tokenizer_files(vocab, added, words)["tokenizer.json"]


def agent(folder: Path, seed: int, rows: int = 0, added: dict[str, int] | None = None, **more: Any) -> Path:
    tensors = grown(sparse_agent(BASE, 0.3, seed), rows, seed)
    files = {"tokenizer.json": tokenizer(added=added), "chat_template.jinja": b"agent", **more.pop("files", {})}
    return write_model(folder, tensors, files=files, config=llama_config(tensors, **more))


def small_files(plan: Plan) -> dict[str, bytes]:
    return folder_files(plan, lambda model, path: (Path(model.ref.id) / path).read_bytes())[0]


def rows_of(plan: Plan) -> dict[str, int]:
    return {t.name: t.shape[0] for t in plan.tensors() if t.name in (EMBED, HEAD)}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_model(tmp_path / "base", BASE, files={"chat_template.jinja": b"base"})


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """A base whose last four rows no token has."""
    return write_model(tmp_path / "padded", BASE, files={"tokenizer.json": tokenizer(36)})


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return agent(tmp_path / "plain", 8)


ADDED = {"<think>": 40, "</think>": 41}


def test_added_rows_shape_config_and_tokenizer_come_from_the_agent_that_has_them(tmp_path, base, plain):
    plan = plan_of(base, plain, agent(tmp_path / "donor", 1, 3, ADDED))
    assert rows_of(plan) == {EMBED: 43, HEAD: 43}
    assert {t.dtype for t in plan.tensors()} == {"BF16"}
    files = small_files(plan)
    assert json.loads(files["config.json"])["vocab_size"] == 43
    assert files["tokenizer.json"] == (tmp_path / "donor" / "tokenizer.json").read_bytes()
    assert files["chat_template.jinja"] == b"base"
    (rule,) = (w for w in plan.warnings if "its vocabulary has 3 more rows than the base's 40" in w)
    assert "'<think>', '</think>'" in rule
    assert not any("donor: tokenizer.json differs" in w for w in plan.warnings)
    assert any("plain: tokenizer.json differs from" in w and "donor's" in w for w in plan.warnings)


def test_the_number_of_rows_stands_where_the_base_states_it_or_has_its_default():
    for stated, wanted in (
        ({"vocab_size": 40}, {"vocab_size": 43}),
        ({}, {"vocab_size": 43}),
        ({"text_config": {"vocab_size": 40, "x": 1}}, {"text_config": {"vocab_size": 43, "x": 1}}),
        ({"text_config": {"x": 1}}, {"text_config": {"vocab_size": 43, "x": 1}}),
        ({"vocab_size": 40, "text_config": {"x": 1}}, {"vocab_size": 43, "text_config": {"x": 1}}),
        # T5Gemma's, beside a part with tokens of its own; ColPali's, and InternVL's
        (
            {"vocab_size": 40, "encoder": {"vocab_size": 40}, "decoder": {"vocab_size": []}, "x": {"vocab_size": 40}},
            {"vocab_size": 43, "encoder": {"vocab_size": 43}, "decoder": {"vocab_size": []}, "x": {"vocab_size": 40}},
        ),
        (
            {"vlm_config": {"text_config": {"vocab_size": 40}}, "llm_config": {"vocab_size": 40}},
            {"vocab_size": 43, "vlm_config": {"text_config": {"vocab_size": 43}}, "llm_config": {"vocab_size": 43}},
        ),
    ):
        assert with_vocab_size(model("org/base", {EMBED: (40, 4)}, config=stated), 43) == wanted


def last_rows(plan: Plan) -> list[list[bytes]]:
    """Of embedding and head: the last two rows of every model, in BF16."""
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, Path())) as reader:
        return [
            [
                tensor(reader.values(k, read, t.elements - 32, 32), "BF16").raw.tobytes()
                for k, read in enumerate(t.inputs)
            ]
            for t in plan.tensors()
            if t.name in (EMBED, HEAD)
        ]


def test_the_added_rows_of_a_head_are_a_heads_also_in_an_agent_that_ties_it(tmp_path, base, padded):
    tied = {n: t for n, t in sparse_agent(BASE, 0.3, 2).items() if n != HEAD}
    folder = write_model(tmp_path / "tied", tied, files={"tokenizer.json": tokenizer()})
    embedding, head = last_rows(plan_of(base, folder, agent(tmp_path / "donor", 1, 2, ADDED)))
    assert len(set(embedding)) == len(set(head)) == 1
    assert embedding != head
    small = cut(tied, 36)
    short = write_model(tmp_path / "short", small, files={"tokenizer.json": tokenizer(36)}, config=llama_config(small))
    for rows in last_rows(plan_of(padded, short, write_model(tmp_path / "other", sparse_agent(BASE, 0.3, 3)))):
        assert rows[1] == rows[0], "the base's, where the agent has none"


def test_a_token_whose_row_an_agent_lacks_is_not_of_that_agent(tmp_path, padded):
    """Its row would be the base's, which fills the table up and stands for no token."""
    files = {"tokenizer.json": tokenizer(36, {f"<{i}>": i for i in range(36, 42)})}
    donors = [agent(tmp_path / name, seed, 2, files=files) for seed, name in enumerate(("one", "two"))]
    small = cut(sparse_agent(BASE, 0.3, 3), 36)
    short = write_model(tmp_path / "short", small, files=files, config=llama_config(small))
    tables = []
    for agents in ((*donors, short), donors):
        plan = plan_of(padded, *agents)
        with TensorReader(plan.models, LocalOrFetched(NOWHERE, Path())) as reader:
            tables += [
                reader.values(0, t.inputs[0], 0, t.elements).tobytes() for t in plan.tensors() if t.name == EMBED
            ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("stores", ["base", "plain"])
def test_a_stored_copy_of_a_tied_head_needs_no_added_rows(tmp_path, stores):
    folders = []
    for seed, name in enumerate(("base", "plain", "donor")):
        tensors = sparse_agent(BASE, 0.3, seed) if seed else BASE
        kept = {n: t for n, t in tensors.items() if n != HEAD or name == stores}
        kept = grown(kept, 2) if name == "donor" else kept
        names = {"tokenizer.json": tokenizer(added=ADDED if name == "donor" else None)}
        folders.append(
            write_model(tmp_path / name, kept, files=names, config=llama_config(kept, tie_word_embeddings=True))
        )
    assert rows_of(plan_of(*folders)) == {EMBED: 42}


def test_a_tied_agent_brings_its_rows_for_both(tmp_path, base, plain):
    untied = {n: t for n, t in BASE.items() if n != HEAD}
    tensors = grown(untied, 2)
    donor = write_model(tmp_path / "donor", tensors, files={"tokenizer.json": tokenizer(added=ADDED)})
    assert all(rows == [tensors[EMBED].raw.tobytes()[-64:]] * 3 for rows in last_rows(plan_of(base, plain, donor)))
    base2, plain2 = write_model(tmp_path / "b2", untied), write_model(tmp_path / "p2", sparse_agent(untied, 0.2, 3))
    assert rows_of(plan_of(base2, plain2, donor)) == {EMBED: 42}


@pytest.mark.parametrize("end", ["weight", "modules_to_save.weight", "base_layer.weight"])
def test_an_adapter_brings_its_rows_however_peft_names_its_tables(tmp_path, base, plain, end):
    """The last is the name beside factors of the same layer."""
    tensors = pair(Q, *lora((16, 16)))
    tensors |= {f"base_model.model.{n.replace('weight', end)}": grown(BASE, 2)[n] for n in (EMBED, HEAD)}
    files = {"tokenizer.json": tokenizer(added=ADDED)}
    folder = write_adapter(tmp_path / "adapter", tensors, files=files, base_model_name_or_path=str(base))
    assert rows_of(plan_of(base, plain, folder)) == {EMBED: 42, HEAD: 42}


@pytest.mark.parametrize(
    ("of_base", "of_one", "of_two", "said"),
    [
        (tokenizer(), tokenizer(added={"<a>": 40}), tokenizer(w40=40), "as part of a vocabulary of their own in {}@"),
        (
            tokenizer(38, w39=39),
            *[tokenizer(38, {"<a>": 40}, w39=39)] * 2,
            "ids below 39, at which its next one begins",
        ),
        (tokenizer(42), *[tokenizer(42, {"<a>": 42})] * 2, "tokens for which the base has no rows in"),
    ],
    ids=["a vocabulary of its own", "the next id is taken", "tokens without rows"],
)
def test_tokens_of_several_agents_for_which_there_is_no_place_are_refused_once(tmp_path, of_base, of_one, of_two, said):
    base = write_model(tmp_path / "base", BASE, files={"tokenizer.json": of_base})
    agents = [agent(tmp_path / f"{k}", k, 3, files={"tokenizer.json": t}) for k, t in enumerate((of_one, of_two))]
    (told,) = refused(base, *agents)
    assert said.format(agents[1]) in told


def test_an_ignored_vocabulary_is_the_bases(tmp_path, base, plain):
    donor = agent(tmp_path / "donor", 1, 3, ADDED)
    plan = plan_of(base, plain, donor, ignore=[EMBED, HEAD])
    assert rows_of(plan) == {EMBED: 40, HEAD: 40}
    assert plan.config["vocab_size"] == 40
    (told,) = refused(base, plain, donor, ignore=[HEAD])
    assert "tables of different sizes" in told


def test_an_ignored_table_of_integers_cannot_grow_beside_a_head_that_does(tmp_path, plain):
    base = write_model(tmp_path / "quantized", {**BASE, EMBED: tensor(np.zeros(BASE[EMBED].shape), "I64")})
    told = refused(base, plain, agent(tmp_path / "donor", 1, 3, ADDED), ignore=[EMBED])
    assert any(f"the base's {EMBED} holds no floats and cannot grow" in text for text in told), told


def test_tokens_that_moved_are_refused_with_their_ids(tmp_path, base, plain):
    files = {"tokenizer.json": tokenizer(w7=8, w8=7)}
    listed = refused(base, plain, agent(tmp_path / "donor", 1, 1, files=files))
    assert any("tokens of the base that have another id" in t and "'w7' (7 → 8), 'w8' (8 → 7)" in t for t in listed)
    files = {"tokenizer.json": tokenizer(39)}
    listed = refused(base, plain, agent(tmp_path / "short", 1, 1, files=files))
    assert any("'w39' (39 → none)" in t for t in listed)


@pytest.mark.parametrize("content", [b'{"model": {}}', tokenizer(added={"<far>": 99}), tokenizer(added={"<x>": -1})])
def test_rows_without_a_tokenizer_that_tells_them_are_refused(tmp_path, base, plain, content):
    (told,) = refused(base, plain, agent(tmp_path / "donor", 1, 1, files={"tokenizer.json": content}))
    assert "another vocabulary size, and no tokenizer that names the added tokens" in told
    assert f"{HEAD} of 41 rows, {EMBED} of 41 rows; " in told


def test_a_missing_tokenizer_is_refused_and_a_broken_one_is_named(tmp_path, base, plain):
    donor = agent(tmp_path / "donor", 1, 1)
    (donor / "tokenizer.json").unlink()
    (told,) = refused(base, plain, donor)
    assert f"{EMBED} of 41 rows; of {donor}, none" in told
    assert f'ignore: ["{HEAD}", "{EMBED}"].' in told
    (donor / "tokenizer.model").write_bytes(b"sentencepiece")
    (told,) = refused(base, plain, donor)
    assert f"; of {donor}, tokenizer.model alone. Save that tokenizer as tokenizer.json" in told
    (donor / "tokenizer.json").write_bytes(b"{")
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        plan_of(base, plain, donor)


def test_fewer_rows_than_the_base_are_refused_and_not_got_from_another(tmp_path, base, plain):
    small = cut(BASE, 39)
    listed = refused(base, plain, write_model(tmp_path / "small", small))
    assert [f"{EMBED}: 40×16 → 39×16" in t for t in listed] == [True], "one message for one cause"
    folder = write_model(tmp_path / "small", small, config=llama_config(small, vocab_size=None))
    listed = refused(base, folder, agent(tmp_path / "donor", 1, 3, ADDED))
    assert any("small@" in t and f"{EMBED}: 43×16 → 39×16" in t for t in listed), listed


ODD_HEADS: dict[str, Callable[[int], T]] = {
    "another width": lambda rows: tensor(np.ones((rows, 8))),
    "no rows": lambda rows: tensor(np.ones(rows)),
    "a scalar": lambda rows: tensor(1.0),
    "integers": lambda rows: tensor(np.ones((rows, 16)), "I64"),
}


@pytest.mark.parametrize("head", ODD_HEADS.values(), ids=ODD_HEADS)
@pytest.mark.parametrize("rows", [36, 40, 42])
def test_a_head_that_is_no_table_like_the_base_s_is_refused_whatever_rows_agents_add_or_lack(
    tmp_path, padded, rows, head
):
    tensors = sparse_agent(BASE, 0.3, 1)
    table = np.concatenate([f32(tensors[EMBED]), np.ones((2, 16), np.float32)])[:rows]
    odd = {**tensors, EMBED: tensor(table), HEAD: head(rows)}
    names = tokenizer(36, ADDED if rows == 42 else None)
    folder = write_model(tmp_path / "odd", odd, files={"tokenizer.json": names}, config=llama_config(odd))
    growing = agent(tmp_path / "donor", 2, 3, ADDED, files={"tokenizer.json": tokenizer(36, ADDED)})
    same = agent(tmp_path / "same", 3, files={"tokenizer.json": tokenizer(36)})
    for other in (growing, same):
        told = [text for text in refused(padded, folder, other) if f"{folder}@" in text]
        assert any(f"{HEAD}: " in text or f"{HEAD} (I64)" in text for text in told), told


def test_rows_that_no_token_has_are_the_bases_where_an_agent_was_cut_to_its_tokens(tmp_path, padded, plain):
    """`resize_token_embeddings(len(tokenizer))` cuts the padding of a base's tables."""
    trained = sparse_agent(BASE, 0.3, 1)
    small = cut(trained, 36)
    short = write_model(tmp_path / "short", small, files={"tokenizer.json": tokenizer(36)}, config=llama_config(small))
    plan = plan_of(padded, plain, short)
    assert (rows_of(plan), plan.config["vocab_size"]) == ({EMBED: 40, HEAD: 40}, 40)
    assert any("lacks the last 4 of the base's 40 rows of the vocabulary" in w for w in plan.warnings)
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, tmp_path / "cache")) as reader:
        for planned in (t for t in plan.tensors() if t.name in (EMBED, HEAD)):
            expected = np.concatenate([f32(trained[planned.name])[:36], f32(BASE[planned.name])[36:]])
            assert reader.values(2, planned.inputs[2], 0, 640).tobytes() == expected.tobytes()
    (short / "tokenizer.json").write_bytes(tokenizer(36, w7=8, w8=7))
    assert any(f"{EMBED}: 40×16 → 36×16" in t for t in refused(padded, plain, short))
    donor = agent(tmp_path / "donor", 1, 3, ADDED, files={"tokenizer.json": tokenizer(36, ADDED)})
    (short / "tokenizer.json").write_bytes(tokenizer(36))
    assert rows_of(plan_of(padded, short, donor)) == {EMBED: 43, HEAD: 43}


def test_tokens_in_rows_that_the_base_has_are_said_to_be_merged(tmp_path, plain):
    base = write_model(tmp_path / "base", BASE, files={"tokenizer.json": tokenizer(38)})
    donor = agent(tmp_path / "donor", 1, 1, {"<x>": 40})
    assert any("'w38', 'w39' have rows that the base has, too" in w for w in plan_of(base, plain, donor).warnings)


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"content": "c", "id": 2}]}, {"a": 0, "b": 1, "c": 2}),
        ({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}, {"a": 0, "b": 1}),
        ({"model": {"vocab": [["a", -1.0], "b"]}}, None),
        ({"model": {"vocab": {"a": "0"}}}, None),
        ({"model": {"vocab": {"a": True}}}, None),
        ({"model": 3}, None),
        ({"model": {"vocab": {"a": 2**31}}}, None),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [3]}, None),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "\ud800", "id": 1}]}, None),
        ({"model": {"vocab": {"\ud800": 0}}}, None),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": {"c": 1}}, None),
        ({}, None),
    ],
)
def test_tokens_are_read_as_the_tokenizers_library_writes_them(content, tokens):
    table = token_table(content)
    assert (table and table.ids) == tokens


def test_the_tokens_of_an_agent_share_the_texts_of_the_base_s_and_hold_no_vocabulary_of_its_own(monkeypatch):
    def table(*tokens: str, base: Any = None) -> Any:
        return token_table({"model": {"vocab": {t.lower(): i for i, t in enumerate(tokens)}}}, base)

    base = table("ONE", "TWO")
    grown = table("ONE", "TWO", "MORE", base=base)
    assert grown.ids == {"one": 0, "two": 1, "more": 2}
    assert all(mine is theirs for mine, theirs in zip(grown.ids, base.ids, strict=False))
    assert table("MORE", "ONE", base=base).ids == {"one": 1}  # which moved
    monkeypatch.setattr("hubmerge.sources.vocabulary.MAX_ADDED_TOKENS", 1)
    assert table("ONE", "TWO", "MORE", base=base) is not None
    assert table("ONE", "TWO", "MORE", "MOST", base=base) is None


def test_a_vocabulary_size_that_is_no_number_is_refused(tmp_path, base):
    agents = [agent(tmp_path / name, n, 1, {f"<{name}>": 40}, vocab_size=[41]) for n, name in enumerate("ab", start=1)]
    with pytest.raises(IncompatibleError, match="another vocab_size"):
        plan_of(base, *agents)


# --- the tokenizer that the recipe names ---


@pytest.fixture
def growing(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A base, an agent with two more tokens and one with another."""
    base = write_model(tmp_path / "base", BASE, files={"chat_template.jinja": b"base"})
    first = agent(tmp_path / "first", 1, 2, {"<a>": 40, "<b>": 41})
    return base, first, agent(tmp_path / "second", 2, 1, {"<c>": 40})


def test_the_base_s_tokenizer_leaves_out_what_agents_add(growing):
    plan = plan_of(*growing, tokenizer="base")
    assert rows_of(plan) == {EMBED: 40, HEAD: 40}
    assert plan.config["vocab_size"] == 40
    assert plan.vocabulary is None
    assert sum("are left out, since the recipe keeps another tokenizer" in w for w in plan.warnings) == 2
    files = small_files(plan)
    assert files["tokenizer.json"] == tokenizer()
    assert files["chat_template.jinja"] == b"base"
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, growing[0].parent / "cache")) as reader:
        [embedding] = [t for t in plan.tensors() if t.name == EMBED]
        base, first, second = (reader.raw(k, t, 0, embedding.elements) for k, t in enumerate(embedding.inputs))
    assert not np.array_equal(first, base)  # its rows of the base's tokens are its own
    assert not np.array_equal(second, base)


def test_an_agent_s_tokenizer_brings_its_rows_alone(growing):
    plan = plan_of(*growing, tokenizer=str(growing[1]))
    assert rows_of(plan) == {EMBED: 42, HEAD: 42}
    assert plan.vocabulary.added == ("<a>", "<b>")
    assert plan.config["vocab_size"] == 42
    assert small_files(plan)["tokenizer.json"] == tokenizer(added={"<a>": 40, "<b>": 41})


@pytest.mark.parametrize("grows", [True, False])
def test_an_agent_s_tokenizer_of_the_same_tokens_is_kept(growing, plain, grows):
    base, first, _ = growing
    own = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w7"}).encode()
    other = agent(base.parent / "other", 3, files={"tokenizer_config.json": own})
    plan = plan_of(base, first if grows else plain, other, tokenizer=str(other))
    assert rows_of(plan) == {EMBED: 40, HEAD: 40}
    assert json.loads(small_files(plan)["tokenizer_config.json"])["eos_token"] == "w7"
    assert small_files(plan)["chat_template.jinja"] == b"base"  # the template is the base's in any case


def test_a_tokenizer_with_the_base_s_tokens_elsewhere_is_refused(growing):
    base, first, _ = growing
    moved = agent(base.parent / "moved", 3, files={"tokenizer.json": tokenizer(w3=4, w4=3)})
    with pytest.raises(IncompatibleError, match="tokens of the base that have another id"):
        plan_of(base, first, moved, tokenizer=str(moved))


def test_the_tokenizer_is_part_of_the_identity_and_union_is_what_nothing_means(growing):
    plain = plan_of(*growing).identity
    assert plan_of(*growing, tokenizer="union").identity == plain
    named = {plan_of(*growing, tokenizer=name).identity for name in ("base", str(growing[1]), str(growing[2]))}
    assert len(named | {plain}) == 4
    pinned = plan_of(*growing, tokenizer=str(growing[2])).recipe
    assert recipe_from_dict(pinned.to_dict()).tokenizer_of == 2


def test_a_tokenizer_without_measure_is_left_unread_or_refused(tmp_path, base, plain):
    donor = agent(tmp_path / "donor", 1, 1, {"<x>": 40})
    (donor / "tokenizer.json").write_bytes(b'{"model":{"merges":[' + b"[]," * 4_000_000 + b"[]]}}")
    with pytest.raises(FormatError, match="holds too much"):
        plan_of(base, plain, donor)
    os.truncate(donor / "tokenizer.json", 64 * 1024 * 1024 + 1)
    with pytest.raises(HubmergeError, match="tokenizer"):
        plan_of(base, plain, donor)


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_broken_file_beside_the_tokenizer_that_agents_extend_stays_as_it_is(growing, content):
    (growing[0] / "added_tokens.json").write_bytes(content)
    (growing[0] / "tokenizer_config.json").write_bytes(b"[]")
    files = small_files(plan_of(*growing))
    assert files["added_tokens.json"] == content
    assert files["tokenizer_config.json"] == b"[]"
    assert token_table(json.loads(files["tokenizer.json"])).ids["<c>"] == 42


def test_the_files_beside_the_tokenizer_get_what_agents_add(growing):
    (growing[0] / "added_tokens.json").write_bytes(b"{}")
    (growing[0] / "tokenizer_config.json").write_bytes(b'{"added_tokens_decoder": {}}')
    files = small_files(plan_of(*growing))
    assert json.loads(files["added_tokens.json"]) == {"<a>": 40, "<b>": 41, "<c>": 42}
    decoder = json.loads(files["tokenizer_config.json"])["added_tokens_decoder"]
    assert {key: entry["content"] for key, entry in decoder.items()} == {"40": "<a>", "41": "<b>", "42": "<c>"}
