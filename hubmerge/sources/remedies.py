"""Next steps for a model without safetensors weights: the command that converts them, or the model to name instead.

A command is for the user's shell and holds names from a stranger's files, so each of them is checked or quoted.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hubmerge.errors import FormatError
from hubmerge.hub.names import FileInfo, stated_bases
from hubmerge.recipe.model_name import is_path

_PICKLED = re.compile(r"(?:pytorch_model(?!_fsdp)[^/]*|adapter_model)\.bin")  # as transformers and peft wrote them
_OTHER = (".bin", ".pt", ".pth", ".gguf", ".ckpt", ".h5", ".msgpack", ".onnx", ".pkl", ".npz", ".distcp")
_BELOW = {
    "adapters": ("/adapter_config.json",),  # as PEFT saves those of other names than `default`
    "models": ("/model.safetensors", "/model.safetensors.index.json"),  # a trainer's checkpoints, too
    "pickled models": ("/pytorch_model.bin", "/pytorch_model.bin.index.json"),  # refused with what converts them
}
# what trainers leave in their own formats, and the command that writes safetensors from it, for the folder `{0}`
_VERL = "python -m verl.model_merger merge --backend fsdp --local_dir {0} --target_dir {0}/huggingface"
_TRAINED = (
    # the merger then writes what the adapter was trained on, too
    (
        re.compile(r"(?:(.+)/)?lora_train_meta\.json"),
        "an adapter's shards of verl",
        _VERL,
        "/huggingface/lora_adapter",
    ),
    (re.compile(r"(?:(.+)/)?model_world_size_\d+_rank_\d+\.pt"), "shards of verl", _VERL, "/huggingface"),
    (
        re.compile(r"(?:(.+)/)?zero_to_fp32\.py"),
        "shards of DeepSpeed",
        "python {0}/zero_to_fp32.py {0} {0} --safe_serialization",
        "",
    ),
    (
        re.compile(r"(?:(.+)/)?pytorch_model_fsdp_0/[^/]+\.distcp"),
        "shards of FSDP",
        "accelerate merge-weights {0}/pytorch_model_fsdp_0 {0}",
        "",
    ),
    (
        re.compile(r"(?:(.+)/)?pytorch_model_fsdp\.bin"),
        "a whole state of FSDP (pickled, which can run code)",
        # under the name that transformers looks for; what converts that is told next
        "cp {0}/pytorch_model_fsdp.bin {0}/pytorch_model.bin",
        "",
    ),
    (
        re.compile(r"(?:(.+)/)?adapters\.safetensors"),
        "an adapter of MLX",
        "mlx_lm.fuse --model BASE --adapter-path {0} --save-path {0}/fused",
        "/fused",
    ),
)
_FOLDER = re.compile(r"\w[\w.\-]*(?:/\w[\w.\-]*)*", re.ASCII)
_CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}", re.ASCII)
_CONVERT = "import sys, transformers as t; t.{}.from_pretrained(sys.argv[1], dtype='auto').save_pretrained(sys.argv[1])"
_CONVERT_ADAPTER = (
    "import sys, torch; from safetensors.torch import save_file; f = sys.argv[1] + '/adapter_model.'; "
    "save_file(torch.load(f + 'bin', map_location='cpu', weights_only=True), f + 'safetensors', {'format': 'pt'})"
)


@dataclass(frozen=True)
class Place:
    """Where a model's files lie: a repo at one commit, or a folder."""

    where: str  # for messages
    id: str
    folder: Path | None
    files: Mapping[str, FileInfo]
    card: Mapping[str, Any]
    read_range: Callable[[str, int, int], bytes]
    read_file: Callable[[str, int], bytes]  # path, most bytes
    revision: str | None = None  # of a repo, where one was named

    def without_weights(self, expected: str, config: Mapping[str, Any]) -> FormatError:
        """The refusal: which files are there instead of safetensors of the `expected` name, and what to do."""
        if pickled := sorted(f for f in self.files if _PICKLED.fullmatch(f)):
            named = ", ".join(ascii(f)[1:-1] for f in pickled[:3])
            return self._error(expected, f"{named} (pickled, which can run code)", self._convert(config))
        if converted := self._trained():
            return self._error(expected, *converted)
        if others := sorted(f for f in self.files if "/" not in f and f.endswith(".safetensors")):
            return FormatError(
                "no safetensors weights under transformers' names",
                where=self.where,
                expected=expected,
                got=", ".join(ascii(f)[1:-1] for f in others[:3]),
                next_step="Fetch the whole model, its index too, or save it anew with transformers.",
            )
        for kind, ends in _BELOW.items():
            if below := self._below(ends):
                return self._error(expected, f"{kind} in {', '.join(below[:3])}", self._take(below[0]))
        found = sorted(f for f in self.files if PurePosixPath(f).suffix in _OTHER)
        named = ", ".join(ascii(f)[1:-1] for f in found[:3]) or "neither"
        for suffix, made in ((".gguf", "GGUF, quantized"), (".onnx", "ONNX, made")):
            if any(f.endswith(suffix) for f in found):
                origin = origin_of(self.card) or "the model that it was made from"
                return self._error(expected, f"{named} ({made} for inference)", f"Name {origin} instead.")
        step = (
            "Only safetensors is opened; convert it with its trainer's tools, or ask the author."
            if found
            else "Look whether it is a model at all, or its weights lie in the folder above, as verl has them."
        )
        return self._error(expected, named, step)

    def _error(self, expected: str, got: str, next_step: str) -> FormatError:
        return FormatError("no safetensors weights", where=self.where, expected=expected, got=got, next_step=next_step)

    def _below(self, ends: tuple[str, ...]) -> list[str]:
        """The folders with a file of one of these names, of numbered ones the last first."""
        folders = {f.rpartition("/")[0] for f in self.files if f.endswith(ends)}
        return sorted((f for f in folders if _FOLDER.fullmatch(f)), key=_latest_first)

    def _trained(self) -> tuple[str, str] | None:
        """What a trainer left in its own format, and the command that converts it."""
        for pattern, words, command, result in _TRAINED:
            parts = {match[1] or "" for f in self.files if (match := pattern.fullmatch(f))}
            for part in sorted((p for p in parts if not p or _FOLDER.fullmatch(p)), key=_latest_first):
                below, fetch = f"/{part}".rstrip("/"), ""
                for kind, at in (("adapters", below), ("models", below + result)):  # saved as one, too
                    if done := [f for f in self._below(_BELOW[kind]) if f"/{f}/".startswith(f"{at}/")]:
                        return f"{kind} in {done[0]}", self._take(done[0])
                here, name = shlex.quote(str(self.folder)), self._local(below + result)
                if self.folder is None:
                    fetch, here = self._fetch()
                    fetch, name = f"{fetch} && ", f"./{here}{below}{result}"
                step = f"If you trust it, convert it, and name {name}: {fetch}{command.format(here + below)}"
                return f"{words} in {part}" if part else words, step
        return None

    def _take(self, part: str) -> str:
        if self.folder is not None:
            return f"Name one: {self._local(f'/{part}')}."
        fetch, here = self._fetch(f" --include '{part}/*'")
        return f"Fetch it (`{fetch}`), and name ./{here}/{part}."

    def _fetch(self, part: str = "") -> tuple[str, str]:
        """The command that fetches the repo at its revision, and the folder into which."""
        name, at = self.id.replace("/", "-"), ""  # agents of several owners may have one name
        if self.revision:
            name, at = f"{name}-{self.revision.replace('/', '-')}", f" --revision {self.revision}"
        here = _plain(name)
        return f"hf download {self.id}{at}{part} --local-dir {here}", here

    def _local(self, below: str) -> str:
        """How a recipe names a folder in this one."""
        return f"{'' if is_path(self.id) else './'}{self.id.rstrip('/')}{below}"

    def _convert(self, config: Mapping[str, Any]) -> str:
        adapter = any(f == "adapter_model.bin" for f in self.files)
        stated = config.get("architectures")
        first = stated[0] if isinstance(stated, list) and stated else ""
        named = first if isinstance(first, str) and _CLASS.fullmatch(first) else "AutoModelForCausalLM"
        code = _CONVERT_ADAPTER if adapter else _CONVERT.format(named)
        if self.folder is not None:
            return f'If you trust it, convert it: python -c "{code}" {shlex.quote(str(self.folder))}'
        fetch, here = self._fetch()
        return f'If you trust it, convert it, and name ./{here}: {fetch} && python -c "{code}" {here}'


def origin_of(card: Mapping[str, Any]) -> str:
    """The model that a card says its own was made from, where it names one."""
    return next(iter(stated_bases(card)), "")


def _latest_first(folder: str) -> tuple[list[int], str]:
    """A key that sorts folders by the numbers in their names, as of steps, the highest first."""
    return [-int(n) for n in re.findall(r"\d{1,12}", folder, re.ASCII)], folder


def _plain(name: str) -> str:
    return name if re.fullmatch(r"[\w.]+(?:[\w.\-]*)", name, re.ASCII) else "model"
