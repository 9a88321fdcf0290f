"""The files of a model beside its weights and config.json: which go with a merge, stay behind, or forbid it.

    select_companions(base, agents, donor)   from names and sizes alone, when a merge is planned
    read_companions(companions, models, read)   the files themselves, made safe to copy

Data goes along, by kind of file: settings (JSON, less what names code or a place), tables of a tokenizer, text
(vocabularies, Jinja templates), binary tokenizers, and the weights of a module where every model has the same. Code,
pickles and everything else stay behind and are named. The files are the base's; where one agent adds tokens, those of
the tokenizer are this agent's. Every parent's license texts go along.

The files stay in memory until they are written, so each has a size limit, and so have all of them together.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from hubmerge.errors import FormatError, MemoryLimitError, Problem, SourceChangedError
from hubmerge.hub.client import Hub
from hubmerge.hub.names import FileInfo
from hubmerge.sources.base import Model
from hubmerge.sources.config import told, without_code
from hubmerge.sources.folder import link_outside, read_inside
from hubmerge.sources.vocabulary import TOKENIZER
from hubmerge.text.wording import incompatible, named

Kind = Literal["settings", "table", "text", "binary", "weights", "license"]
ReadFile = Callable[[Model, str], bytes]

MAX_FILE_BYTES = 64 * 1024 * 1024  # tokenizers reach 35 MB
MAX_SETTINGS_BYTES = 8 * 1024 * 1024  # of a JSON file that is parsed
MAX_LICENSE_BYTES = 1_000_000
MAX_LICENSES_BYTES = 16_000_000  # of all parents together
MAX_TOGETHER_BYTES = 256 * 1024 * 1024
MAX_FILES = 1_000

_NAME = r"[A-Za-z0-9][\w.\-]{0,120}"
_VOCAB = r"(?:[\w\-]+[_\-])?vocab(?:[_\-][\w\-]+)?"
# files that transformers can build a tokenizer from, by itself
_TOKENIZERS: tuple[tuple[str, Kind], ...] = (
    (r"tokenizer(?:\.\d[\w.]*)?\.json", "table"),
    (rf"(?!entity_){_VOCAB}\.json", "table"),
    (r"tekken(?:_\w+)?\.json|byte_maps\.json", "table"),
    (rf"{_VOCAB}\.txt|bpe\.codes|tiktoken\.model", "text"),
    (rf"{_NAME}\.(?:model|spm|tokenizer)|tokenizer(?:\.mm)?\.model\.v\w+", "binary"),
)
# what belongs to one
_OF_TOKENIZERS: tuple[tuple[str, Kind], ...] = (
    (r"tokenizer_config\.json|special_tokens_map\.json", "settings"),
    (r"added_tokens\.json|normalizer\.json|emoji\.json|entity_vocab\.json|word_(?:shape|pronunciation)\.json", "table"),
    (rf"(?:[\w\-]+[_\-])?merges(?:[_\-][\w\-]+)?\.txt|dict(?:\.[\w\-]+)?\.txt|{_NAME}\.(?:tiktoken|bpe)", "text"),
)
_TEMPLATES: tuple[tuple[str, Kind], ...] = (
    (r"chat_template\.json", "settings"),
    (rf"{_NAME}\.jinja|additional_chat_templates/{_NAME}\.jinja", "text"),
)
_OTHERS: tuple[tuple[str, Kind], ...] = (
    (r"generation_config\.json|(?:video_)?preprocessor_config\.json|processor_config\.json", "settings"),
    (r"audio_tokenizer_config\.json|decision(?:_config)?\.json|judge_config\.json|calibration\.json", "settings"),
    *_TEMPLATES,
)
# where a processor has several, the others lie in folders of their names; transformers takes the first in place of one
# that is missing
_OTHER_TOKENIZERS = tuple(
    (rf"\w{{1,60}}_tokenizer/(?:{pattern})", kind) for pattern, kind in (*_TOKENIZERS, *_OF_TOKENIZERS)
)
MODULES = "modules.json"  # of sentence-transformers: the model is its first module, the others lie in folders
MODULE_FOLDER = r"\d+_\w+(?:/\w[\w\-]*)?"
_OF_MODULES: tuple[tuple[str, Kind], ...] = (
    (rf"{re.escape(MODULES)}|config_sentence_transformers\.json|sentence_[\w\-]+_config\.json", "settings"),
    (rf"{MODULE_FOLDER}/idf\.json", "table"),
    *((rf"{MODULE_FOLDER}/(?:{pattern})", kind) for pattern, kind in (*_TOKENIZERS, *_OF_TOKENIZERS)),
    (rf"{MODULE_FOLDER}/{_NAME}\.json", "settings"),
    (rf"{MODULE_FOLDER}/model\.safetensors", "weights"),
)
_LICENSE = re.compile(
    r"(?:licenses/(?:\w[\w.\-]{0,99}/){0,4})?"  # where a merge puts those of its parents
    r"(?:(?:MODEL_)?LICEN[SC]E|NOTICE|COPYING|USE_POLICY|USAGE_POLICY)(?:[-_][\w\-]{1,40})?(?:\.(?:md|txt|rst))?",
    re.IGNORECASE | re.ASCII,
)

# beside the weights, whose place another file takes or nothing needs to
_OF_THE_REPO = re.compile(
    r"README\.md|\.git\w*|config\.json|hubmerge\.json|recipe\.yaml|model\.safetensors\.index\.json|figures/.*"
    r"|\.eval_results/.*|\.cache/.*|\.hubmerge/.*"
)
# why a file stays behind, by its suffix
_REASONS = {
    "code": (".py", ".pyc", ".so", ".sh", ".ipynb", ".cu", ".cpp", ".js"),
    "may hold code": (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz"),
    "weights that the merge does not reach": (
        *(".safetensors", ".gguf", ".onnx", ".h5", ".msgpack", ".tflite", ".ot", ".mlmodel", ".onnx_data"),
    ),
}
_OTHER_TOKENIZER, _UNKNOWN = "of a tokenizer that the merge does not keep", "not known to belong to a model"
# how pickles, archives and programs begin, whatever their name says
_NO_DATA = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"\x7fELF", b"MZ", b"#!")
# what an agent's trainer writes anew every time, whatever it says
_ALWAYS_DIFFERENT = re.compile(
    r"(?:tokenizer|generation)_config\.json|special_tokens_map\.json|added_tokens\.json"
    rf"|{re.escape(MODULES)}|config_sentence_transformers\.json"
)


@dataclass(frozen=True)
class Companion:
    """One file that goes with the merge."""

    path: str  # in the output
    model: int  # among the models of the merge, the base being 0
    source: str  # path in the model
    size: int  # bytes
    kind: Kind


@dataclass(frozen=True)
class Companions:
    """The files that go with a merge, with warnings and problems about them."""

    files: tuple[Companion, ...] = ()
    left_out: str = ""  # the base's other files, in words
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(f.size for f in self.files)


def kind_of(path: str, *, modules: bool = False) -> Kind | None:
    """The kind of a file, by its path; None where it does not go along. `modules`: a modules.json lies beside it."""
    if _LICENSE.fullmatch(path):
        return "license"
    rules = (*_TOKENIZERS, *_OF_TOKENIZERS, *_OTHERS, *_OTHER_TOKENIZERS, *(_OF_MODULES if modules else ()))
    return _kind_by(rules, path)


def _kind_by(rules: Sequence[tuple[str, Kind]], path: str) -> Kind | None:
    if len(path) > 300:  # longer than any of these; a stranger's could take the patterns quadratic time
        return None
    return next((kind for pattern, kind in rules if re.fullmatch(pattern, path, re.ASCII)), None)


def is_of_tokenizer(path: str) -> bool:
    return _kind_by((*_TOKENIZERS, *_OF_TOKENIZERS), path) is not None


def makes_tokenizer(path: str) -> bool:
    """Whether transformers can build a tokenizer from this file, perhaps with others."""
    return _kind_by(_TOKENIZERS, path) is not None


def select_companions(
    base: Model, agents: Sequence[Model], labels: Sequence[str], donor: int = 0, *, united: bool = False
) -> Companions:
    """The files that go with a merge. `donor`: the model whose tokenizer it has (0: the base); `united`: the agents'
    tokens are added to it."""
    models = (base, *agents)
    modules = MODULES in base.files
    files: list[Companion] = []
    for number in dict.fromkeys((0, donor)):
        for path, info in models[number].files.items():
            kind = kind_of(path, modules=modules)
            if kind is None or kind == "license" or (donor if is_of_tokenizer(path) else 0) != number:
                continue
            files.append(Companion(path, number, path, info.size, kind))
    licenses, warnings = _licenses(models, labels)
    problems = (
        *_links(models, donor, modules),
        *_too_big(models, files, licenses),
        *_no_tokenizer(models[donor], files),
    )
    for agent in agents:
        warnings += _differences(base, agent, models[donor], modules, taken_up=united and agent.tokens is not None)
    left_out = _left_out(base, {f.source for f in (*files, *licenses) if f.model == 0}, own_tokenizer=donor == 0)
    return Companions((*files, *licenses), left_out, problems, (*warnings, *([left_out] if left_out else [])))


def read_companions(
    companions: Companions, models: Sequence[Model], read: ReadFile
) -> tuple[dict[str, bytes], list[str]]:
    """The files' contents by path, safe to copy, and notes on what was left out of them."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for file in companions.files:
        content = read(models[file.model], file.source)
        clean, removed = without_code(content) if file.kind == "settings" else (content, ())
        if clean is None:
            notes.append(f"{file.path}: left out (not JSON)")
        elif (file.kind == "text" and not _is_text(clean)) or (file.kind == "license" and b"\0" in clean):
            notes.append(f"{file.path}: left out (not text)")
        # the length of a header may begin as a pickle does
        elif content[8:9] != b"{" if file.kind == "weights" else content.startswith(_NO_DATA):
            notes.append(f"{file.path}: left out (a program, archive or pickle under another name)")
        else:
            files[file.path] = clean
        if removed:
            notes.append(told(file.path, removed))
    return files, notes


def tokenizer_files(model: Model, read: ReadFile) -> tuple[dict[str, bytes], list[str]]:
    """The tokenizer and chat templates of one model, safe to load; FormatError for one that is no JSON or too large."""
    rules = (*_TOKENIZERS, *_OF_TOKENIZERS, *_TEMPLATES)
    taken = [Companion(n, 0, n, info.size, kind) for n, info in model.files.items() if (kind := _kind_by(rules, n))]
    for file in taken:
        if file.size > (most := _most_bytes(file)):
            raise FormatError("a file is too large", where=f"{file.path} in {model.ref}", expected=f"{most} bytes")
    files, notes = read_companions(Companions(tuple(taken)), (model,), read)
    if missing := [file.path for file in taken if file.path not in files]:
        raise FormatError(
            "a file of another kind than its name says", where=f"{missing[0]} in {model.ref}", got=notes[0]
        )
    return files, notes


def reader(hub: Hub) -> ReadFile:
    """A function that reads a small file of a pinned model; it raises SourceChangedError where a file has gone."""

    def read(model: Model, path: str) -> bytes:
        if model.ref.kind == "hub":
            return hub.read_file(model.ref.id, model.ref.sha, path)
        try:
            return read_inside(model.ref.path, path, MAX_FILE_BYTES)
        except OSError as error:
            raise SourceChangedError(
                "a file of the model can no longer be read",
                where=f"{path} of {model.ref}",
                got=error.strerror or str(error),
                next_step="Resume when it is there again.",
            ) from None

    return read


def _licenses(models: Sequence[Model], labels: Sequence[str]) -> tuple[list[Companion], list[str]]:
    """The license texts of all parents, the base's under their own names, and those that could not be taken."""
    files: list[Companion] = []
    notes: list[str] = []
    taken = {"/".join(path.lower().split("/")[:2]) for path in models[0].files}
    for number, (model, label) in enumerate(zip(models, ("", *labels), strict=True)):
        found = {path: info for path, info in model.files.items() if _LICENSE.fullmatch(path)}
        slug = re.sub(r"[^\w.\-]+", "--", label, flags=re.ASCII).strip("-.") or "agent"
        folder, count = f"licenses/{slug}", 1
        while found and folder.lower() in taken:  # of another label, or a text of the base; some disks tell no A from a
            count += 1
            folder = f"licenses/{slug}-{count}"
        if label and found:
            taken.add(folder.lower())
        for path, info in found.items():
            if info.size > MAX_LICENSE_BYTES:
                notes.append(f"{model.ref.id}: {path} is too large to be copied; see it there")
                continue
            short = path.removeprefix("licenses/")  # a text of its own parent
            inside = path if short != path and short in found else short
            files.append(Companion(f"{folder}/{inside}" if label else path, number, path, info.size, "license"))
    return files, notes


def _links(models: Sequence[Model], donor: int, modules: bool) -> Iterator[Problem]:
    """Problems about links out of a local folder where a file would be copied."""
    hidden = ("x.jinja", "x.json", TOKENIZER)
    for number, model in enumerate(models):
        for path in model.outside:
            kind = kind_of(path, modules=modules)
            taken = number in (0, donor) or kind in ("license", "weights")
            # a folder that is a link is not entered, so what lies in it is not known
            hides = number == 0 and any(kind_of(f"{path}/{name}", modules=modules) for name in hidden)
            if (kind is not None and taken) or hides:
                yield link_outside(model.ref.id, path).problems[0]


def _too_big(models: Sequence[Model], files: Sequence[Companion], licenses: Sequence[Companion]) -> Iterator[Problem]:
    def problem(what: str, most: int, taken: Sequence[Companion]) -> Problem:
        sizes = [sum(f.size for f in taken if f.model == k) for k in range(len(models))]
        return Problem(
            MemoryLimitError.code,
            what,
            where=str(models[sizes.index(max(sizes))].ref),
            expected=f"at most {most:,} bytes",
            got=f"{sum(sizes):,}",
            next_step="Merge a copy of the model without what it does not need.",
        )

    for file in files:
        if file.size > (most := _most_bytes(file)):
            yield problem(f"{file.source} is too large to be copied", most, [file])
    if sum(f.size for f in licenses) > MAX_LICENSES_BYTES:
        yield problem("license files that are too large together", MAX_LICENSES_BYTES, licenses)
    elif sum(f.size for f in (*files, *licenses)) > MAX_TOGETHER_BYTES:
        yield problem("files beside the weights that are too large together", MAX_TOGETHER_BYTES, (*files, *licenses))
    if (count := len(files) + len(licenses)) > MAX_FILES:
        yield Problem(
            MemoryLimitError.code, "too many files beside the weights", expected=f"at most {MAX_FILES}", got=str(count)
        )


def _most_bytes(file: Companion) -> int:
    return MAX_SETTINGS_BYTES if file.kind == "settings" else MAX_FILE_BYTES


def _no_tokenizer(donor: Model, files: Sequence[Companion]) -> Iterator[Problem]:
    """The problem of a tokenizer that only the repo's own code can build, since code is not carried over."""
    code = [path for path in donor.files if re.fullmatch(r"tokenization_\w+\.py", path, re.ASCII)]
    auto = donor.config.get("auto_map")
    if isinstance(auto, dict) and "AutoTokenizer" in auto:
        code.append("auto_map of config.json")
    # tiktoken.model has tokens alone: how a text is cut says the code, in whose place transformers takes Llama 3's way
    if code and not any(makes_tokenizer(f.path) and f.path != "tiktoken.model" for f in files):
        yield incompatible(
            "a tokenizer that needs the repo's own code",
            where=str(donor.ref),
            expected="tokenizer.json, or a vocabulary that transformers reads",
            got=named(code),
            next_step="A merge carries no code: add a tokenizer.json to a copy of the base, or choose another base.",
        )


def _differences(base: Model, agent: Model, keeper: Model, modules: bool, *, taken_up: bool) -> Iterator[str]:
    """A warning about an agent's files that differ from those that the merge keeps.

    `taken_up`: the kept files hold the agent's tokens.
    """
    differing: dict[str, list[str]] = {}
    brought: list[str] = []
    for path in sorted({*base.files, *agent.files}):
        kind = kind_of(path, modules=modules)
        if kind in (None, "license", "weights") or _ALWAYS_DIFFERENT.fullmatch(path):
            continue
        if taken_up and is_of_tokenizer(path):
            continue
        kept = keeper if is_of_tokenizer(path) else base
        a, b = kept.files.get(path), agent.files.get(path)
        if a and b and other_content(a, b):
            differing.setdefault("the base's" if kept.ref == base.ref else f"{kept.ref.id}'s", []).append(path)
        elif a is None and b and not (is_of_tokenizer(path) and path != TOKENIZER):
            brought.append(path)
        elif a and b is None and agent.adapter is None and path in (TOKENIZER, "chat_template.jinja"):
            # an adapter's repo need not repeat what its base has; and few repeat what lies there in two forms
            yield f"{agent.ref.id}: has no {path}; the merge keeps the base's"
    for whose, paths in differing.items():
        yield f"{agent.ref.id}: {named(paths)} differ{'s' * (len(paths) == 1)} from {whose}; the merge keeps {whose}"
    if brought:
        verb = "is" if len(brought) == 1 else "are"
        yield f"{agent.ref.id}: {named(brought)}, which the base does not have, {verb} left out"


def other_content(a: FileInfo, b: FileInfo) -> bool:
    """Whether two files differ, as far as is stated; a folder states sizes alone."""
    ids = {a.sha256, b.sha256} if a.sha256 or b.sha256 else {a.blob, b.blob}
    return a.size != b.size or (None not in ids and len(ids) > 1)


def _left_out(base: Model, taken: set[str], *, own_tokenizer: bool) -> str:
    """The base's files that stay behind, and why, in one line. `own_tokenizer`: the merge has the base's."""
    groups: dict[str, list[str]] = {}
    for path in sorted({*base.files} - taken - {*base.shards}):
        if not _OF_THE_REPO.fullmatch(path) and not _LICENSE.fullmatch(path):
            suffix = PurePosixPath(path).suffix.lower()
            why = next((reason for reason, suffixes in _REASONS.items() if suffix in suffixes), _UNKNOWN)
            if is_of_tokenizer(path) and not own_tokenizer:
                why = _OTHER_TOKENIZER
            groups.setdefault(why, []).append(ascii(path)[1:-1][:80])
    said = []
    for why in (*_REASONS, _OTHER_TOKENIZER, _UNKNOWN):
        # files of one folder as the folder
        names = list(dict.fromkeys(f"{p.partition('/')[0]}/" if "/" in p else p for p in groups.get(why, ())))
        if names:
            said.append(f"{named(names)} ({why})")
    return f"{base.ref.id}: left out: {'; '.join(said)}" if said else ""


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode("utf-8")
    except UnicodeDecodeError:
        return False
