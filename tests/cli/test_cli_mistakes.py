"""Typical mistakes are answered with what is wrong, where, what was found, and what to do; docs/mistakes.md shows them.

`build` makes the models and repos that the mistakes are about; `MISTAKES` is the table of what users type, and on what.
HUBMERGE_WRITE_MISTAKES=1 writes docs/mistakes.md anew.
"""

import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import T, llama_config, llama_shapes, random_base, sparse_agent, tensor, write_model
from huggingface_hub import HfApi, constants
from source_helpers import write_adapter

from hubmerge.cli.main import main
from localhub.process import LocalHubProcess

CARD = {"README.md": b"---\nlicense: mit\n---\n"}
FOREIGN = "hf_" + "f" * 34


@dataclass(frozen=True)
class Mistake:
    """`arguments` may hold {base}, {one} … (folders), {here} and {endpoint}."""

    title: str
    arguments: str  # one string, split at spaces
    recipe: str = ""  # written to {here}/recipe.yaml
    stdin: str | None = None
    token: str | None = "ada"  # whose, or the text itself; None: none
    code: int = 1
    variables: dict[str, str] = field(default_factory=dict)


def recipe(*agents: str, base: str = "{base}", method: str = "ram", more: str = "") -> str:
    return f"base: {base}\nagents: [{', '.join(agents)}]\nmethod: {method}\n{more}"


def on_hub(agent: str = "ada/one") -> str:
    return recipe(agent, "ada/two", base="ada/base")


TWO = recipe("{one}", "{two}")
BEYOND = "parameters: {r: 200}\n"
MERGE = "merge recipe.yaml --out out"
INSPECT = "inspect recipe.yaml"


def build(folder: Path, api: HfApi, bob: HfApi) -> dict[str, str]:
    """Models below `folder` and repos of ada and bob on the embedded Hub; their names for `Mistake.arguments`."""
    weights = random_base(0)
    one, two = sparse_agent(weights, 0.1, 1), sparse_agent(weights, 0.1, 2)
    places: dict[str, Path] = {}

    def model(name: str, tensors: dict[str, T], **options: Any) -> Path:
        options.setdefault("files", CARD)
        places[name] = write_model(folder / name, tensors, **options)
        return places[name]

    model("base", weights)
    model("one", one)
    model("two", two)
    model("unlicensed", one, files={})
    model("qwen", one, config=llama_config(one, architectures=["Qwen2ForCausalLM"], model_type="qwen2"))
    model("vocabulary", random_base(3, sizes=llama_shapes(vocab=36)))
    broken = np.array(two["model.norm.weight"].values, dtype=np.float32)
    broken[3] = np.nan
    model("nan", {**two, "model.norm.weight": tensor(broken)})
    model("halfway", {n: t for n, t in one.items() if "layers.1" not in n})
    (model("noconfig", one) / "config.json").unlink()
    pickled = model("bin", one)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    trainer = folder / "trainer"
    for step in (9, 10, 100):
        write_model(trainer / f"checkpoint-{step}", one, files=CARD)
    (trainer / "trainer_state.json").write_text("{}")
    shutil.copy(places["one"] / "config.json", trainer / "config.json")
    from_one = {"README.md": b"---\nlicense: mit\nbase_model: ada/one\n---\n"}
    gguf = model("gguf", one, files=from_one)
    (gguf / "model.safetensors").rename(gguf / "model-Q4_K_M.gguf")
    (gguf / "config.json").unlink()
    packed = {n: t for n, t in one.items() if "q_proj" not in n}
    packed["model.layers.0.self_attn.q_proj.qweight"] = tensor(np.ones((16, 2)), "I32")
    for name in ("awq", "gptq"):
        quantized = llama_config(one, quantization_config={"quant_method": name, "bits": 4, "group_size": 128})
        model(name, packed, config=quantized, files=from_one)
    rng = np.random.default_rng(5)
    parts = {"A": tensor(rng.normal(size=(2, 32)), "F32"), "B": tensor(rng.normal(size=(32, 2)), "F32")}
    factors = {f"base_model.model.model.layers.0.self_attn.q_proj.lora_{n}.weight": t for n, t in parts.items()}
    settings = {"r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/other-base", "target_modules": ["q_proj"]}
    write_adapter(folder / "adapter", factors, files=CARD, **settings, bias="none")
    pointer = model("pointer", one)
    (pointer / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 30000\n"
    )
    for name in ("foreign", "unfinished"):
        (folder / name).mkdir()
        (folder / name / "thesis.tex").write_text("ten years")
    places |= {name: folder / name for name in ("trainer", "adapter", "foreign", "unfinished")}
    (model("comma", one) / "config.json").write_text('{"architectures": ["LlamaForCausalLM"],}')
    pushed = [(api, f"ada/{name}", name) for name in ("base", "one", "two", "gguf")]
    for owner, repo, name in [*pushed, (bob, "bob/private", "one"), (bob, "bob/gated", "one")]:
        owner.create_repo(repo)
        owner.upload_folder(repo_id=repo, folder_path=places[name])
    bob.update_repo_settings("bob/private", private=True)
    bob.update_repo_settings("bob/gated", gated="manual")
    api.create_repo("ada/rows", repo_type="dataset")
    api.create_repo("ada/taken")
    api.upload_file(repo_id="ada/taken", path_or_fileobj=b"mine", path_in_repo="thesis.tex")
    return {name: str(path) for name, path in places.items()}


def prepare(mistake: Mistake, here: Path, names: dict[str, str]) -> tuple[list[str], str | None]:
    """The command's arguments and its standard input, with the recipe in place."""
    known = {**names, "here": str(here)}

    def filled(text: str) -> str:
        for name, value in known.items():
            text = text.replace("{" + name + "}", value)
        return text

    if mistake.recipe:
        (here / "recipe.yaml").write_text(filled(mistake.recipe))
    stdin = None if mistake.stdin is None else filled(mistake.stdin)
    return [filled(argument) for argument in mistake.arguments.split()], stdin


def normal(text: str, here: Path, endpoint: str) -> str:
    """A message without what differs between two machines."""
    text = text.replace(str(here), "…").replace(endpoint, "HUB")
    # as Python 3.13 has it
    text = text.replace(
        "Illegal trailing comma before end of object", "Expecting property name enclosed in double quotes"
    )
    for pattern, instead in (
        (r"@[0-9a-f]{12}\b", "@…"),
        (r"column \d+", "column …"),
        (r"[\d.]+ (?=[kM]B)", "… "),
        (r"\(choose from [^)]*\)", "(choose from …)"),
        (r"torch [\d.]+[\w+.]*", "torch …"),
    ):
        text = re.sub(pattern, instead, text)
    return text


HEAD = (
    "# Typical mistakes, and what is said\n\n"
    "Each is tried by a test, which holds this page to the messages. `…` is a folder or what differs between "
    "machines, HUB the address of a Hub.\n\n"
    "| mistake | command | what is said |\n|---|---|---|\n"
)


def row(mistake: Mistake, said: str) -> str:
    """A line of docs/mistakes.md, below HEAD."""
    cell = said.replace("|", "\\|").replace("\n", "<br>").replace("*", "\\*")
    return f"| {mistake.title} | `{mistake.arguments}` | {cell} |\n"


MISTAKES = (
    Mistake("a method misspelled", INSPECT, recipe("{one}", "{two}", method="ram_pluss")),
    Mistake("a method that is none", INSPECT, recipe("{one}", "{two}", method="average")),
    Mistake("a key misspelled", INSPECT, TWO.replace("agents", "agnets")),
    Mistake("an agent's key misspelled", INSPECT, recipe("{one}", "{model: {two}, wieght: 0.5}")),
    Mistake(
        "a parameter misspelled",
        INSPECT,
        recipe("{one}", "{two}", method="task_arithmetic", more="parameters: {lamda: 0.5}\n"),
    ),
    Mistake("a parameter of another method", INSPECT, TWO + "parameters: {density: 0.5}\n"),
    Mistake("a weight in quotes", INSPECT, recipe("{one}", "{model: {two}, weight: '0.5'}")),
    Mistake("a weight in percent", INSPECT, recipe("{one}", "{model: {two}, weight: 50%}")),
    Mistake("another tool's name for a key", INSPECT, TWO.replace("agents", "models")),
    Mistake("agents that are no list", INSPECT, "base: {base}\nagents: {one}\nmethod: ram\n"),
    Mistake("a method's title", INSPECT, recipe("{one}", "{two}", method="RAM+")),
    Mistake("a parameter out of its range", INSPECT, recipe("{one}", "{two}", method="ram_plus", more=BEYOND)),
    Mistake("a dtype by its short name", INSPECT, TWO + "dtype: bf16\n"),
    Mistake("no base", INSPECT, recipe("{one}", "{two}", base="''")),
    Mistake("no such recipe", "inspect recip.yaml", TWO),
    Mistake("a folder for a recipe", "inspect {one}"),
    Mistake("an empty recipe", INSPECT, "\n"),
    Mistake("a sweep for a recipe", MERGE, TWO.replace("method: ram", "sweep: [{method: ram}]")),
    Mistake("tabs in a recipe", INSPECT, "base: {base}\nagents:\n\t- {one}\n\t- {two}\nmethod: ram\n"),
    Mistake("a quote that is not closed", INSPECT, TWO.replace("ram", '"ram')),
    Mistake("a recipe on one line", INSPECT, "base: {base} agents: [{one}, {two}] method: ram"),
    Mistake("JSON with a trailing text", INSPECT, '{"base": "{base}", "agents": ["{one}", "{two}"]} method: ram'),
    Mistake(
        "a mergekit document of an unknown method",
        INSPECT,
        "merge_method: tie\nbase_model: {base}\nmodels:\n- model: {one}\n- model: {two}\n",
    ),
    Mistake("one agent", INSPECT, recipe("{one}")),
    Mistake("the base among the agents", INSPECT, recipe("{base}", "{one}")),
    Mistake("the same agent twice", INSPECT, recipe("{one}", "{one}")),
    Mistake("another architecture", INSPECT, recipe("{one}", "{qwen}")),
    Mistake("another vocabulary", INSPECT, recipe("{one}", "{vocabulary}")),
    Mistake("an agent without some layers", INSPECT, recipe("{one}", "{halfway}")),
    Mistake("a folder that is not there", INSPECT, recipe("{one}", "./too")),
    Mistake("a file of weights for a model", INSPECT, recipe("{one}/model.safetensors", "{two}")),
    Mistake("a path with a variable", INSPECT, recipe("$HOME/agent", "{two}")),
    Mistake("a config.json with a comma too many", INSPECT, recipe("{comma}", "{two}")),
    Mistake("a folder without config.json", INSPECT, recipe("{one}", "{noconfig}")),
    Mistake("pickled weights", INSPECT, recipe("{bin}", "{two}")),
    Mistake("a trainer's folder", INSPECT, recipe("{trainer}", "{two}")),
    Mistake("weights that git-lfs did not fetch", INSPECT, recipe("{pointer}", "{two}")),
    Mistake("GGUF", INSPECT, on_hub("ada/gguf")),
    Mistake("AWQ", INSPECT, recipe("{awq}", "{two}")),
    Mistake("GPTQ", INSPECT, recipe("{gptq}", "{two}")),
    Mistake("a LoRA adapter of another base", INSPECT, recipe("{adapter}", "{two}")),
    Mistake("an address for an id", INSPECT, on_hub("https://huggingface.co/ada/one")),
    Mistake("no such repo", INSPECT, on_hub("ada/onne")),
    Mistake("no such revision", INSPECT, on_hub("ada/one@v9")),
    Mistake("a dataset for a model", INSPECT, on_hub("ada/rows")),
    Mistake("a gated model", INSPECT, on_hub("bob/gated")),
    Mistake("a private model without a token", INSPECT, on_hub("bob/private"), token=None),
    Mistake("a token that is not valid", INSPECT, on_hub(), token=FOREIGN),
    Mistake("no connection", INSPECT, on_hub(), variables={"HF_ENDPOINT": "http://127.0.0.1:9"}),
    Mistake("offline without the models", INSPECT, on_hub(), variables={"HF_HUB_OFFLINE": "1"}),
    Mistake("a recipe on standard input", "inspect -", stdin=TWO.replace("method: ram", "method: rum")),
    Mistake("no GPU", MERGE + " --device cuda", TWO),
    Mistake("no GPU for a sensitivity", "sensitivity {one} --data d --prompt p --answer a --out s --device cuda"),
    Mistake("an output folder with other things", "merge recipe.yaml --out {foreign}", TWO),
    Mistake("an output that is a file", "merge recipe.yaml --out {one}/config.json", TWO),
    Mistake("an output that cannot be written", "merge recipe.yaml --out /proc/merged", TWO),
    Mistake("too little disk", MERGE + " --disk-budget 0.00001", TWO),
    Mistake("NaN in the weights", MERGE, recipe("{one}", "{nan}")),
    Mistake("models in place of a recipe", "merge {base} {one} {two} --out out", code=2),
    Mistake("an option misspelled", "merge recipe.yaml --ouput out", TWO, code=2),
    Mistake("an option before the command", "--log-json merge recipe.yaml --out out", TWO, code=2),
    Mistake("a command misspelled", "merg recipe.yaml --out out", TWO, code=2),
    Mistake("a suite misspelled", "evaluate {one} --suite mth"),
    Mistake("publishing what is not finished", "publish {unfinished} ada/new"),
    Mistake("publishing without a token", "publish {merged} ada/new", token=None),
    Mistake("publishing with a token that only reads", "publish {merged} ada/new", token="ada_read"),
    Mistake("publishing to somebody else", "publish {merged} bob/new"),
    Mistake("publishing without an owner", "publish {merged} new"),
    Mistake("publishing over something else", "publish {merged} ada/taken"),
    Mistake("publishing without a license", "run recipe.yaml --to ada/new", recipe("{unlicensed}", "{two}")),
    Mistake("going on where nothing was begun", "merge recipe.yaml --out {foreign} --resume", TWO),
)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"
WRITING = bool(os.environ.get("HUBMERGE_WRITE_MISTAKES"))
_now: dict[str, str] = {}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("hub")) as process:
        yield process


@pytest.fixture(scope="module")
def names(hub: LocalHubProcess) -> Iterator[dict[str, str]]:
    """The models and repos, and a finished merge; in a folder with a short name, since messages cut long values."""
    with tempfile.TemporaryDirectory(prefix="mistakes-", dir="/tmp") as folder:
        here = Path(folder)
        made = build(here, *(HfApi(hub.endpoint, token=hub.tokens[name]) for name in ("ada", "bob")))
        (here / "first.yaml").write_text(f"base: {made['base']}\nagents: [{made['one']}, {made['two']}]\nmethod: ram\n")
        assert main(["merge", str(here / "first.yaml"), "--out", str(here / "merged")]) == 0
        yield {**made, "merged": str(here / "merged"), "here": str(here)}


def answered(
    mistake: Mistake, hub: LocalHubProcess, names: dict[str, str], patch: pytest.MonkeyPatch, capsys: Any, *more: str
) -> tuple[int, str]:
    import torch

    here = Path(names["here"])
    shutil.rmtree(here / "out", ignore_errors=True)
    arguments, stdin = prepare(mistake, here, names)
    patch.chdir(here)
    patch.setenv("HF_ENDPOINT", hub.endpoint)
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr("sys.stdin", io.StringIO(stdin or ""))
    patch.delenv("HF_TOKEN", raising=False)
    if mistake.token is not None:
        patch.setenv("HF_TOKEN", hub.tokens.get(mistake.token, mistake.token))
    for name, value in mistake.variables.items():
        if name == "HF_HUB_OFFLINE":  # the client reads it when it is imported
            patch.setattr(constants, name, True)
        else:
            patch.setenv(name, value)
    capsys.readouterr()
    try:
        code = main([*arguments, *more])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.title.replace(" ", "-"))
def test_a_mistake_is_answered_with_what_where_and_what_to_do(mistake, hub, names, monkeypatch, capsys):
    more = ["--log-json"] if mistake.code == 1 else []
    code, err = answered(mistake, hub, names, monkeypatch, capsys, *more)
    assert (code, "Traceback" in err) == (mistake.code, False)
    now = err.splitlines()[-1]
    if code == 1:
        error = json.loads(now)
        for problem in error["problems"]:
            assert problem["what"]
            assert problem["next_step"]
            assert problem["where"] or (problem["expected"] and problem["got"])
        now = f"hubmerge: {error['message']}"
    now = normal(now, Path(names["here"]), hub.endpoint)
    _now[mistake.title] = now
    assert WRITING or row(mistake, now) in PAGE.read_text(encoding="utf-8")


def test_the_page_of_mistakes_is_made_of_what_is_said():
    if WRITING:
        rows = [row(mistake, _now[mistake.title]) for mistake in MISTAKES]
        PAGE.write_text(HEAD + "".join(rows), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    titles = [line.split(" | ")[0] for line in text.removeprefix(HEAD).splitlines()]
    assert titles == [f"| {mistake.title}" for mistake in MISTAKES]
