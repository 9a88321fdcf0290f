"""Finds the program in a model's answer: a fenced block, plain code, or the rest of a function that it was given."""

import re
import textwrap
from itertools import dropwhile, takewhile

# no expression here may take the square of an answer's length: a stranger's tokenizer can have a token of any length
# a fence with the first word after it (`python`, `{python}`, `bash`); only one of Python or of none need begin no line
_PYTHON = r"(?:i?python3?|py3?)"
_FENCED = re.compile(
    rf"(?:^[ \t]*```[^\w\n`]*+(?P<word>\w*+)[^\n`]*+|```[ \t]*(?:{_PYTHON}[ \t]*)?\r?)\n(?P<code>.*?)(?:\n?```|\Z)",
    re.DOTALL | re.IGNORECASE | re.MULTILINE,
)
_STARTS_CODE = re.compile(r"^(?:from|import|def|async def|class|@)\b|^@", re.MULTILINE)
_CONSTANT = re.compile(r"[A-Za-z_]\w*[ \t]*=[ \t]*[-\d'\"\[({]|\s*(?:#.*)?$")  # or a blank line, or a comment


def without_thoughts(answer: str) -> str:
    """The answer without the model's visible reasoning."""
    return answer.rpartition("</think>")[2]


def _blocks(text: str) -> list[str]:
    fences = re.findall(r"^[ \t]*```(.*)$", text, re.MULTILINE)
    if len(fences) % 2 and not fences[0].strip():
        before = text.partition("```")[0]
        if _is_continuation(before) or _STARTS_CODE.search(before):
            return []  # the first fence closes a block that the answer never opened
    found = [match["code"] for match in _FENCED.finditer(text) if re.fullmatch(_PYTHON, match["word"] or "py", re.I)]
    return [code for code in found if code.strip()]


def defines(code: str, name: str) -> bool:
    return re.search(rf"^[^\S\n]*(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) is not None


def whole_program(answer: str) -> str:
    """The program of an answer that is asked for all of it.

    The last fenced block with a definition in it counts, else the last block, else the text from its first line
    of code on.
    """
    text = without_thoughts(answer)
    blocks = _blocks(text)
    if blocks:
        defining = [block for block in blocks if re.search(r"^[^\S\n]*(def|class)\b", block, re.MULTILINE)]
        return _outdented((defining or blocks)[-1])
    return _from_code_on(text.partition("[DONE]")[0].partition("\n```")[0])


def _from_code_on(text: str) -> str:
    """The text from its first line of code on, with the constants that stand before it."""
    start = _STARTS_CODE.search(text)
    if start is None:
        return text
    before = reversed(text[: start.start()].splitlines(keepends=True))
    constants = list(takewhile(_CONSTANT.match, before))
    return "".join(constants[::-1]) + text[start.start() :]


def completed(prompt: str, answer: str, name: str) -> str:
    """The program that an answer makes of `prompt`, which ends inside the function `name`.

    An answer that defines the function replaces it and keeps what stands before it (imports, helpers); any other
    is taken as the function's remaining lines, up to the first line that leaves it.
    """
    text = without_thoughts(answer)
    before = before_definition(prompt, name)
    blocks = _blocks(text)
    for block in reversed(blocks):
        if defines(block, name):
            return f"{before}\n{_outdented(block)}"
    if blocks:
        return prompt + _body(blocks[-1])
    text = text.partition("\n```")[0]
    if defines(text, name) and not _is_continuation(text):
        return f"{before}\n{_from_code_on(text)}"
    return prompt + _body(text)


def before_definition(prompt: str, name: str) -> str:
    """The part of `prompt` before the last definition of `name`, its decorators aside: imports and helpers."""
    starts = [match.start() for match in re.finditer(rf"^def\s+{re.escape(name)}\b", prompt, re.MULTILINE)]
    return prompt[: starts[-1]] if starts else prompt


def _is_continuation(text: str) -> bool:
    """Whether it starts with an indented line."""
    return re.match(r"(?:[ \t]*\r?\n)*[ \t]+\S", text) is not None


def _outdented(block: str) -> str:
    """A block that stands in a list is indented as a whole."""
    return textwrap.dedent(block) if block.lstrip("\r\n")[:1].isspace() else block


def _body(text: str) -> str:
    """The lines that belong to the function, the first one indented if it lost that, or a part of it, on its way: the
    decoder of many tokenizers takes a space from the start of an answer."""
    lines = list(dropwhile(lambda line: not line.strip(), text.split("\n")))
    if lines and not lines[0].startswith(("    ", "\t")):
        lines[0] = "    " + lines[0].lstrip()
    kept = []
    for line in lines:
        if line.strip() and not line[0].isspace():
            break
        kept.append(line)
    return "\n".join(kept) + "\n"
