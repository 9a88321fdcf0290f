"""What goes with a merge beside weights and config.json: all that is data, nothing that is code, and never too much."""

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from builders import llama_shapes, random_base, recipe_dict, sparse_agent, write_model
from plan_helpers import NOWHERE, model, opened
from source_helpers import lora, pair, write_adapter

from hubmerge.engine.prediction import Machine, predict
from hubmerge.errors import HubmergeError, IncompatibleError, SourceNotFoundError
from hubmerge.hub.names import FileInfo
from hubmerge.line import Request, prepare
from hubmerge.plan.disk import output_need
from hubmerge.plan.files import folder_files, module_problems
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import recipe_from_dict
from hubmerge.sources.base import Model
from hubmerge.sources.companions import is_of_tokenizer, kind_of, makes_tokenizer, reader, select_companions
from hubmerge.sources.folder import list_folder, read_inside

BASE = random_base(0, sizes=llama_shapes(layers=1))
AGENTS = (sparse_agent(BASE, 0.1, 1), sparse_agent(BASE, 0.1, 2))


def plan_of(
    folder: Path,
    base_files: Mapping[str, bytes],
    *agent_files: Mapping[str, bytes],
    config: Mapping[str, Any] | None = None,
) -> Plan:
    """As a user gets it: folders written, opened, checked. The second agent has the first one's files if none of its
    own, and both have the base's if none are named."""
    first = agent_files[0] if agent_files else base_files
    second = agent_files[1] if len(agent_files) > 1 else first
    parents = [
        write_model(folder / name, tensors, files=files, config=config)
        for name, tensors, files in zip(("base", "a", "b"), (BASE, *AGENTS), (base_files, first, second), strict=True)
    ]
    return prepared(*parents)


def prepared(base: Path, *agents: Path) -> Plan:
    recipe = recipe_from_dict(recipe_dict(base, agents))
    return prepare(recipe, NOWHERE, Request(license="mit", allow_local=True)).plan


def files_of(plan: Plan) -> tuple[dict[str, bytes], list[str]]:
    return folder_files(plan, reader(NOWHERE))


def refused(folder: Path, *files: Mapping[str, bytes], **more: Any) -> HubmergeError:
    with pytest.raises(HubmergeError) as caught:
        plan_of(folder, *files, **more)
    return caught.value


# --- names -------------------------------------------------------------------------------------------------------

# of the names that transformers loads: weights in its own and other formats, cards, and what a trainer keeps
DATA = re.compile(r"\w[\w.\-]*\.(json|txt|model|spm|jinja|codes|tokenizer|tiktoken|bpe|vocab|npy|yaml|bin|pt)")
NO_COMPANIONS = re.compile(
    r"config\.json|README\.md|modelcard\.json|\S+\.(bin|pt|h5|msgpack|ckpt\S*|safetensors|py)|\S+\.index\.json"
    r"|adapter_config\.json|trainer_state\.json|export\.json|optimizer\S*|ds_config\.json|all_results\.json"
)


NAMED = re.compile(r"(?i:vocab_files_names)|[A-Z_]+_(?:NAME|FILE)|extra_config_files")
STATED = re.compile(rf"^ *(?:{NAMED.pattern})\b.*=", re.MULTILINE)


def names_in_transformers() -> Iterator[tuple[str, str]]:
    """(name, module) of every file that a class of transformers says it loads, read from its source."""
    root = Path(str(find_spec("transformers").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not STATED.search(text):  # most, and all take a minute to parse
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) | ast.AnnAssign(ast.Name(name), value=value):
                    if NAMED.fullmatch(name) and value is not None:
                        texts = (part.value for part in ast.walk(value) if isinstance(part, ast.Constant))
                        yield from ((text, str(path.relative_to(root))) for text in texts if isinstance(text, str))


@pytest.mark.slow
def test_every_file_that_a_class_of_transformers_loads_goes_along():
    found = {(n, where) for n, where in names_in_transformers() if DATA.fullmatch(n)}
    assert len({name for name, _ in found}) > 35  # the search still finds them
    tokenizers = {n for n, where in found if "tokenization" in where}
    assert {"spiece.model", "source.spm", "prophetnet.tokenizer", "bpe.codes", "tokenizer.json"} <= tokenizers
    dropped = {(n, where) for n, where in found if kind_of(n) is None and not NO_COMPANIONS.fullmatch(n)}
    assert dropped == set()
    assert {n for n in tokenizers if not is_of_tokenizer(n)} <= {"chat_template.jinja", "config.json"}


MAKE_TOKENIZERS = (
    *("tokenizer.4.0.0.json", "tokenizer.model.v3", "tokenizer.mm.model.v7m1", "tekken.json", "tekken_240718.json"),
    *("tiktoken.model", "vocab-src.json", "target_vocab.json", "source.spm", "vocab.txt", "ice_text.model"),
)
BELONG_TO_TOKENIZERS = ("added_tokens.json", "merges.txt", "normalizer.json", "emoji.json", "qwen.tiktoken")


def test_what_belongs_to_a_tokenizer_is_known_and_what_makes_one_alone():
    names = [*MAKE_TOKENIZERS, *BELONG_TO_TOKENIZERS]
    assert [n for n in names if kind_of(n) is None or not is_of_tokenizer(n)] == []
    assert [n for n in names if makes_tokenizer(n)] == [*MAKE_TOKENIZERS]


SENTENCE_TRANSFORMERS = (
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("sentence_xlm-roberta_config.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    *("1_SpladePooling/config.json", "0_Router/router_config.json", "3_LSTM/lstm_config.json"),
    *("0_Router/query_0_SparseStaticEmbedding/config.json", "4_WeightedLayerPooling/config.json"),
)


def test_what_sentence_transformers_writes_goes_along_beside_a_list_of_modules():
    assert [n for n in SENTENCE_TRANSFORMERS if kind_of(n, modules=True) is None or kind_of(n) is not None] == []


STAY_BEHIND = (
    *("modeling_x.py", "tokenization_x.py", "LICENSE.py", "tokenizer.json.py", "1_Pooling/pooling.py", "run.sh"),
    *("pytorch_model.bin", "training_args.bin", "optimizer.pt", "2_Dense/pytorch_model.bin", "vocab.pkl"),
    *("../tokenizer.json", "/etc/vocab.txt", "x/../tokenizer.json", "onnx/tokenizer.json", "1_Pooling/../x.json"),
    *("my_tokenizer/tok.py", "my_tokenizer/config.json", "my_tokenizer/x/tokenizer.json", "_tokenizer/vocab.txt"),
    *("requirements.txt", "LICENSE.exe", "params.json", "onnx/model.onnx"),
    *("custom_generate/generate.py", ".env", "config.yaml", "consolidated.safetensors", "tokenizer.json\n"),
    *("additional_chat_templates/../x.jinja", "additional_chat_templates/a/b.jinja", "licenses/../LICENSE"),
)


def test_what_is_code_a_pickle_or_another_place_stays_behind():
    assert [n for n in STAY_BEHIND if kind_of(n) or kind_of(n, modules=True)] == []


def test_a_name_without_end_takes_no_time():
    begin = process_time()
    assert [kind_of("vocab_" * 10_000 + end, modules=True) for end in ("x.json", "x.jsom")] == [None, None]
    assert process_time() - begin < 1


# --- a merge -----------------------------------------------------------------------------------------------------

RICH = {
    "processor_config.json": b'{"processor_class": "LlavaProcessor", "patch_size": 14}',
    "video_preprocessor_config.json": b'{"do_resize": true}',
    "preprocessor_config.json": b'{"image_mean": [0.5, 0.5, 0.5]}',
    "spiece.model": b"\n\x0e\n\x05<unk>",
    "tekken.json": b'{"config": {"pattern": "(?i)"}, "vocab": []}',
    "normalizer.json": b'{"colour": "color", "auto_map": "automap"}',
    "additional_chat_templates/tool_use.jinja": b"{{ messages }}",
    "chat_template.jinja": b"{{ messages[0] }}",
    "licenses/older/LICENSE": b"of the base's parent",
    "qformer_tokenizer/tokenizer.json": b'{"model": "of a processor that has two"}',
    "qformer_tokenizer/tokenizer_config.json": b'{"padding_side": "left"}',
    "qformer_tokenizer/vocab.txt": b"a",
}


def test_no_license_text_takes_the_place_of_another(tmp_path):
    """As where agents of a merge are merged into it once more."""
    of_base = {"LICENSE": b"base", "licenses/A/LICENSE": b"of the base's parent"}
    of_a = {"LICENSE": "© a".encode("latin-1"), "licenses/LICENSE": b"of a's parent"}
    files, _ = files_of(plan_of(tmp_path, of_base, of_a, {}))
    kept = {**of_base, "licenses/a-2/LICENSE": of_a["LICENSE"], "licenses/a-2/licenses/LICENSE": b"of a's parent"}
    assert {name: content for name, content in files.items() if "LICENSE" in name} == kept


def test_code_in_a_processors_settings_goes_and_is_told(tmp_path):
    code = {"auto_map": {"AutoProcessor": "evil.Evil"}, "patch_size": 14, "image_processor": {"auto_map": {"x": "e.E"}}}
    files, notes = files_of(plan_of(tmp_path, {"processor_config.json": json.dumps(code).encode()}))
    assert json.loads(files["processor_config.json"]) == {"patch_size": 14, "image_processor": {}}
    assert len(notes) == 1
    assert "auto_map" in notes[0]


def test_a_file_that_is_not_what_its_name_says_stays_behind(tmp_path):
    starts = (b"\x80\x04\x95", b"PK\x03\x04", b"\x7fELF", b"#!/bin/sh")
    odd = {f"{n}.model": start + b"x" * 20 for n, start in enumerate(starts)}
    files, notes = files_of(plan_of(tmp_path, {**odd, "chat_template.jinja": b"\xff\xfe{{ x }}"}))
    assert not files.keys() & {*odd, "chat_template.jinja"}
    program = "a program, archive or pickle under another name"
    assert sorted(notes) == [
        *(f"{name}: left out ({program})" for name in odd),
        "chat_template.jinja: left out (not text)",
    ]


def test_what_stays_behind_is_named_with_the_reason(tmp_path):
    code = (f"m{n}.py" for n in range(9))
    names = ("pytorch_model.bin", "onnx/model.onnx", "onnx/decoder.onnx", "wav/a.npy", "notes.yaml", "README.md")
    odd = dict.fromkeys((*code, *names, ".gitattributes"), b"")
    plan = plan_of(tmp_path, odd, {})
    [warning] = plan.warnings
    assert warning == (
        f"{tmp_path / 'base'}: left out: m0.py, m1.py, m2.py, m3.py, m4.py and 4 more (code); pytorch_model.bin, wav/ "
        "(may hold code); onnx/ (weights that the merge does not reach); notes.yaml (not known to belong to a model)"
    )
    assert not odd.keys() & files_of(plan)[0].keys()


def test_the_bases_tokenizer_stays_behind_where_the_merge_keeps_another():
    files = {name: FileInfo(name, 10) for name in ("tokenizer.json", "vocab.txt", "notes.yaml")}
    base, agent = (model(f"org/{name}", files=files) for name in ("base", "agent"))
    companions = select_companions(base, (agent,), ("agent",), donor=1)
    assert {(f.path, f.model) for f in companions.files} == {("tokenizer.json", 1), ("vocab.txt", 1)}
    assert companions.left_out == (
        "org/base: left out: tokenizer.json, vocab.txt (of a tokenizer that the merge does not keep); "
        "notes.yaml (not known to belong to a model)"
    )


def test_an_agent_s_other_files_are_named(tmp_path):
    theirs = {**RICH, "preprocessor_config.json": b"{}", "spiece.model": b"another", "extra.jinja": b"x"}
    plan = plan_of(tmp_path, RICH, RICH, theirs)
    agent = tmp_path / "b"
    assert plan.warnings == (
        f"{agent}: preprocessor_config.json, spiece.model differ from the base's; the merge keeps the base's",
        f"{agent}: extra.jinja, which the base does not have, is left out",
    )
    assert {name: files_of(plan)[0][name] for name in RICH} == RICH


def test_a_chat_template_that_is_lost_is_told_whatever_file_it_stands_in(tmp_path):
    def config(template: Any, **more: Any) -> dict[str, bytes]:
        return {"tokenizer_config.json": json.dumps({"chat_template": template, **more}).encode()}

    said = "the chat template in tokenizer_config.json differs from the base's; the merge keeps the base's"
    base, same = config("{{ messages }}"), config("{{ messages }}", model_max_length=10**30)
    for number, (theirs, told) in enumerate(
        [
            (config("<think>{{ messages }}"), True),
            (config([{"name": "default", "template": "{{ messages }}"}]), True),
            (config(None), False),
            ({"tokenizer_config.json": b"[" * 3000}, False),
        ]
    ):
        folder = tmp_path / str(number)
        assert plan_of(folder, base, same, theirs).warnings == ((f"{folder / 'b'}: {said}",) if told else ())
    of_base = plan_of(tmp_path / "none", {"tokenizer_config.json": b"{}"}, base, {}).warnings
    assert [warning.partition(": ")[2] for warning in of_base] == [said]
    file = {**base, "chat_template.jinja": b"{{ messages }}"}
    assert plan_of(tmp_path / "file", file, file, {**file, **config("another")}).warnings == ()


@pytest.mark.parametrize(
    ("base", "agent", "told"),
    [
        (
            {"eos_token_id": 2},
            {"eos_token_id": [9, 2, 7]},
            "at token 2, 7, 9, the base's at 2; the merge keeps the base's",
        ),
        (None, {"eos_token_id": 9}, "answers at token 9, the base's at 2; the merge keeps the base's"),
        ({"eos_token_id": [2, 7]}, {"eos_token_id": [7, 2], "temperature": 0.6}, ""),
        ({"eos_token_id": [2, 7]}, {"temperature": 0.6}, ""),
    ],
)
def test_an_agent_that_ends_its_answers_elsewhere_than_the_merge_will_is_told(tmp_path, base, agent, told):
    files = ({} if g is None else {"generation_config.json": json.dumps(g).encode()} for g in (base, agent))
    [*said] = plan_of(tmp_path, *files, {}, config={"eos_token_id": 2}).warnings
    assert len(said) == bool(told)
    assert told in "".join(said)


def test_files_that_git_lfs_did_not_fetch_are_refused_by_name(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 30000\n"
    error = refused(tmp_path, {"tokenizer.json": pointer, "LICENSE": pointer, "pytorch_model.bin": pointer}, {})
    assert error.code == "E_FORMAT"
    assert [p.where.partition(" in ")[0] for p in error.problems] == ["tokenizer.json", "LICENSE"]
    assert all("git lfs pull" in p.next_step for p in error.problems)
    (tmp_path / "a" / "config.json").write_bytes(pointer)
    with pytest.raises(HubmergeError, match=r"a pointer of git-lfs stands in for a file in config\.json"):
        opened(tmp_path / "a")


# --- refused -----------------------------------------------------------------------------------------------------


def test_a_tokenizer_that_only_the_repos_code_can_build_is_refused():
    def of(*names: str, **config: Any) -> Model:
        return replace(
            model("org/base", files={n: FileInfo(n, 10) for n in names}), config={**model("x").config, **config}
        )

    def problems(base: Model) -> list[str]:
        return [str(p) for p in select_companions(base, (), ()).problems]

    [problem] = problems(of("tokenization_qwen.py", "qwen.tiktoken", "tokenizer_config.json"))
    assert "tokenization_qwen.py" in problem
    assert "add a tokenizer.json to a copy of the base" in problem
    [problem] = problems(of("tokenization_x.py", "tiktoken.model", "tokenizer_config.json"))  # as Moonlight has
    assert problem.startswith("E_INCOMPATIBLE: a tokenizer that needs the repo's own code")
    assert "tokenization_x.py" in problem
    [problem] = problems(of("tokenizer_config.json", auto_map={"AutoTokenizer": ["org/x--tok.Tok", None]}))
    assert "auto_map of config.json" in problem
    assert problems(of("tokenization_x.py", "tiktoken.model", "tokenizer.json")) == []
    assert problems(of("tiktoken.model")) == []  # Llama 3's
    assert problems(of("tokenization_x.py", "tokenizer.json")) == []
    assert problems(of("tokenization_x.py", "tokenizer.model")) == []
    assert problems(of("model.txt")) == []  # a model without a tokenizer


def sized(sizes: Mapping[str, int]) -> Model:
    return model("org/base", files={name: FileInfo(name, size) for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({f"LICENSE-{n}.txt": 1_000_000 for n in range(800)}, "license files that are too large together"),
        ({"tokenizer.json": 64 * 1024 * 1024 + 1}, "tokenizer.json is too large"),
        ({"special_tokens_map.json": 8 * 1024 * 1024 + 1}, "special_tokens_map.json is too large"),
        ({f"{n}.model": 60_000_000 for n in range(5)}, "files beside the weights that are too large together"),
        ({f"additional_chat_templates/{n}.jinja": 1 for n in range(1001)}, "too many files"),
    ],
)
def test_a_bomb_of_files_is_refused_before_anything_is_fetched(sizes, said):
    problems = select_companions(sized(sizes), (), ()).problems
    assert [p.code for p in problems] == ["E_TOO_BIG"]
    assert said in str(problems[0])


def test_a_license_of_more_than_a_megabyte_is_named_and_left_out():
    found = select_companions(sized({"LICENSE": 1_000_001, "NOTICE": 1_000_000}), (), ())
    assert [f.source for f in found.files] == ["NOTICE"]
    assert "org/base: LICENSE is too large to be copied; see it there" in found.warnings


def test_the_files_are_part_of_the_disk_budget_and_of_the_prediction(tmp_path):
    plan = plan_of(tmp_path, {"spiece.model": b"x"})
    huge = replace(plan, companions=replace(plan.companions, files=(replace(plan.companions.files[0], size=2**30),)))
    for uploaded in (True, False):
        assert (
            output_need(huge, uploaded=uploaded) - output_need(plan, uploaded=uploaded) == 2**30 - plan.companions.bytes
        )
    machine = Machine(cores=2)
    assert predict(huge, machine).memory_bytes - predict(plan, machine).memory_bytes > 2**29


# --- links in a local folder -------------------------------------------------------------------------------------


OF_BASE = ("LICENSE", "spiece.model", "config.json", "model.safetensors", "README.md")
LINKS = [*(("base", name) for name in OF_BASE), ("b", "NOTICE")]
FOLDERS = [("base", "additional_chat_templates"), ("base", "qformer_tokenizer")]


@pytest.mark.parametrize(("whose", "name"), [*LINKS, *FOLDERS])
def test_a_link_out_of_a_folder_is_refused_and_its_content_is_nowhere(tmp_path, whose, name):
    secret = tmp_path / "secret"
    if (whose, name) in FOLDERS:
        secret.mkdir()
        (secret / "tokenizer.json").write_text("the secret")
    else:
        secret.write_text("the secret")
    folders = [write_model(tmp_path / n, t) for n, t in zip(("base", "a", "b"), (BASE, *AGENTS), strict=True)]
    (tmp_path / whose / name).unlink(missing_ok=True)
    (tmp_path / whose / name).symlink_to(secret)
    with pytest.raises(SourceNotFoundError) as caught:
        prepared(*folders)
    assert "a link that leads out of the folder" in str(caught.value)
    assert name in str(caught.value)
    assert "the secret" not in str(caught.value)


def test_a_file_that_became_a_link_after_the_plan_is_not_followed(tmp_path):
    plan = plan_of(tmp_path, {"LICENSE": b"mine"})
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "base" / "LICENSE").unlink()
    (tmp_path / "base" / "LICENSE").symlink_to("../secret")
    with pytest.raises(SourceNotFoundError, match="LICENSE"):
        files_of(plan)


def test_links_that_stay_in_the_folder_and_unused_ones_do_no_harm(tmp_path):
    folder = write_model(tmp_path / "base", BASE, files={"text": b"MIT"})
    (folder / "LICENSE").symlink_to("text")
    (folder / "run.log").symlink_to(tmp_path / "elsewhere")
    model = opened(folder)
    assert model.files["LICENSE"].size == 3
    assert model.outside == ("run.log",)
    assert select_companions(model, (), ()).problems == ()


def test_a_snapshot_of_the_clients_cache_is_a_folder_like_any_other(tmp_path):
    repo = tmp_path / "models--org--name"
    whole = write_model(repo / "whole", BASE, files={"LICENSE": b"MIT"})
    snapshot = repo / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for path in whole.iterdir():
        os.rename(path, repo / "blobs" / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    (snapshot / "NOTICE").symlink_to("../../../secret")
    files, outside = list_folder(snapshot)
    assert {"config.json", "model.safetensors", "LICENSE"} <= set(files)
    assert outside == ("NOTICE",)
    assert read_inside(snapshot, "LICENSE", 3) == b"MIT"


def test_a_folder_of_very_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hubmerge.sources.folder._MAX_FILES", 3)
    for n in range(4):
        (tmp_path / str(n)).touch()
    with pytest.raises(HubmergeError, match="too many files"):
        list_folder(tmp_path)


# --- sentence-transformers ---------------------------------------------------------------------------------------


def modules(*classes: str) -> bytes:
    listed = [
        {"idx": n, "name": str(n), "path": f"{n}_{c.rpartition('.')[2]}" if n else "", "type": c}
        for n, c in enumerate(classes)
    ]
    return json.dumps(listed).encode()


WEIGHTS = (640).to_bytes(8, "little") + b"{}".ljust(640)  # begins as a pickle does
DENSE = {
    "modules.json": modules(*(f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense"))),
    "config_sentence_transformers.json": b'{"prompts": {"query": "query: "}, "similarity_fn_name": "cosine"}',
    "sentence_bert_config.json": b'{"max_seq_length": 128}',
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    "2_Dense/config.json": b'{"in_features": 16}',
    "2_Dense/model.safetensors": WEIGHTS,
}


def test_what_is_data_goes_along_byte_for_byte(tmp_path):
    """With the modules that all models share, or of which an agent has none."""
    whole = {**RICH, **DENSE}
    plan = plan_of(tmp_path, whole, whole, RICH)
    files, notes = files_of(plan)
    assert {name: files[name] for name in whole} == whole
    assert files["licenses/a/older/LICENSE"] == RICH["licenses/older/LICENSE"]
    assert (notes, plan.warnings) == ([], ())


def test_an_agent_that_trained_another_module_is_refused(tmp_path):
    theirs = {**DENSE, "2_Dense/model.safetensors": WEIGHTS[:-1] + b"\t"}
    error = refused(tmp_path, DENSE, DENSE, theirs)
    assert isinstance(error, IncompatibleError)
    assert "another module beside the model, which a merge does not reach in 2_Dense/model.safetensors" in str(error)
    assert str(tmp_path / "b") in str(error)
    assert len(error.problems) == 1
    added = {n: c for n, c in DENSE.items() if not n.startswith("2_")}
    assert "one that the base does not have" in str(refused(tmp_path / "2", added, DENSE))


def test_an_adapter_s_repo_that_trained_another_module_is_refused(tmp_path):
    """sentence-transformers' `add_adapter` leaves the other modules trainable and saves them beside the adapter."""
    base = write_model(tmp_path / "base", BASE, files=DENSE)
    factors = pair("model.layers.0.mlp.up_proj", *lora((24, 16)))
    other = {**DENSE, "2_Dense/model.safetensors": WEIGHTS[:-1] + b"\t"}
    agents = [write_adapter(tmp_path / f"{n}", factors, files=f, lora_alpha=n) for n, f in ((1, DENSE), (2, other))]
    with pytest.raises(IncompatibleError, match="another module beside the model") as caught:
        prepared(base, *agents)
    assert [p.where for p in caught.value.problems] == [f"2_Dense/model.safetensors in {opened(agents[1]).ref}"]


def test_files_of_equal_sizes_on_the_hub_are_told_by_what_it_states_of_them():
    """And not fetched."""
    dense, template = "2_Dense/model.safetensors", "chat_template.jinja"

    def of(name: str, digit: str) -> Model:
        stated = (FileInfo(dense, 640, digit * 64), FileInfo(template, 9, blob=digit * 40), FileInfo("modules.json", 9))
        return model(name, files={info.path: info for info in stated})

    def read(model: Model, path: str) -> bytes:
        assert path == "modules.json"
        return DENSE[path]

    base, same, other = of("org/base", "1"), of("org/same", "1"), of("org/other", "2")
    [problem] = module_problems(base, (same, other), read)
    assert "another module beside the model" in str(problem)
    assert problem.where.startswith(f"{dense} in org/other@")
    [warning] = select_companions(base, (same, other), ("same", "other")).warnings
    assert warning == f"org/other: {template} differs from the base's; the merge keeps the base's"


@pytest.mark.parametrize("pickled", ["base", "agent"])
def test_a_module_that_is_only_there_as_a_pickle_is_refused_with_the_command_that_converts_it(tmp_path, pickled):
    old = {n.replace("model.safetensors", "pytorch_model.bin"): c for n, c in DENSE.items()}
    error = refused(tmp_path, *((old, {}) if pickled == "base" else (DENSE, {}, old)))
    assert "a module whose weights are a pickle" in str(error)
    assert f".save_pretrained('FOLDER')\" {tmp_path}/" in str(error), "no name stands within the quotes of a shell"
    there = {name: FileInfo(name, 9) for name in ("modules.json", "2_Dense/pytorch_model.bin")}
    [problem] = module_problems(on_hub := model("org/base", files=there), (), lambda model, path: DENSE[path])
    assert f"S(sys.argv[1], revision='{on_hub.ref.sha}').save_pretrained('FOLDER')\" org/base" in problem.next_step
    both = {**DENSE, "2_Dense/pytorch_model.bin": b"x"}
    files, _ = files_of(plan_of(tmp_path / "both", both, both))
    assert "2_Dense/pytorch_model.bin" not in files
    assert "2_Dense/model.safetensors" in files


@pytest.mark.parametrize("foreign", ["custom_st.Transformer", "os.system", "sentence_transformers", "a--b.C"])
def test_a_module_of_the_repos_own_code_is_refused(tmp_path, foreign):
    error = refused(tmp_path, {"modules.json": modules(foreign)})
    assert "modules that need the repo's own code" in str(error)
    assert "merge a copy of the base without modules.json" in str(error)


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"a": 1}', b"[" * 100_000])
def test_a_list_of_modules_that_is_none_is_refused(tmp_path, content):
    assert "modules.json that does not list modules" in str(refused(tmp_path, {"modules.json": content}))
