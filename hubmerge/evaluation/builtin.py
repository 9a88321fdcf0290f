"""Prepares two of lighteval's own tasks to run in a process without network and with foreign data.

IFEval downloads nltk's trained splitters when it is imported. They are replaced by nltk's rules that need no data,
so that every machine scores alike: words by the Treebank rules without splitting sentences first, sentences by
Punkt without trained abbreviations. Language detection is seeded, since langdetect draws at random.

LiveCodeBench keeps its private tests as a pickle inside the dataset, and executes answers in a fork of the
evaluating process, which holds the pipe to our parent. The pickle is read by a reader that builds nothing but
plain text. Answers are graded by lighteval's own functions in `sandbox.py`, on both of its sides: the one that executes
an answer compiles, calls and captures what is printed; the other one, where no answer runs, compares.
"""

import ast
import base64
import importlib
import importlib.util
import io
import json
import pickle
import zlib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hubmerge.errors import EvaluationError
from hubmerge.evaluation.tasks import BuiltinTask

_MAX_TESTS_BYTES = 1 << 30  # of one problem, unpacked; the largest of the real ones are some hundred MB
_TEST_S = 6  # per test, as LiveCodeBench has it
_SLACK_S = 5
# the parts of lighteval's grader that run a program; the others fork, pool and count
_GRADER = frozenset(
    (
        *("CODE_TYPE", "TimeoutException", "Capturing", "timeout_handler", "clean_if_name", "make_function"),
        *("call_method", "get_function", "compile_code", "convert_line_to_decimals", "get_stripped_lines"),
        *("grade_call_based", "grade_stdio", "run_test"),
    )
)
# what the grader's two functions that touch an answer are on the side where it runs, and on the other one
_ANSWERING = """
def there_compile(code, timeout):
    return compile_code(code, timeout)

def there_call(method, inputs):
    with Capturing() as printed:
        call_method(method, inputs)
    return printed[0]
"""
_ASKING = """
def compile_code(code, timeout):
    return there_compile(code, timeout)

def call_method(method, inputs):
    print(there_call(method, inputs), end="")
"""
_NOT_IN_THE_SANDBOX = frozenset(("numpy", "tqdm", "lighteval"))


def prepare_builtin(task: BuiltinTask) -> None:
    """Prepare the task's module so that it can be imported and used here."""
    if task.module.endswith(".ifeval.main"):
        langdetect: Any = importlib.import_module("langdetect")
        nltk: Any = importlib.import_module("nltk")
        split_words = nltk.word_tokenize
        nltk.download = lambda *_, **__: True
        nltk.word_tokenize = lambda text, *_, **__: split_words(text, preserve_line=True)
        langdetect.DetectorFactory.seed = 0
        instructions: Any = importlib.import_module("lighteval.tasks.tasks.ifeval.instructions")
        instructions.json = SimpleNamespace(loads=_json)
        utils: Any = importlib.import_module("lighteval.tasks.tasks.ifeval.instructions_utils")
        utils._get_sentence_tokenizer = cache(nltk.tokenize.PunktSentenceTokenizer)
    elif task.module.endswith(".lcb.main"):
        module: Any = importlib.import_module(task.module)
        module.translate_private_test_cases = private_tests
        module.CodegenMetric.compute = _graded


def _json(text: str) -> Any:
    """The JSON of an answer; ValueError also for one of a thousand brackets, for which the whole run would end."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise EvaluationError("a dataset's pickle names code", where="lcb", got=ascii(f"{module}.{name}")[:120])


def private_tests(encoded: str) -> Any:
    """A problem's private tests: JSON in a pickled string, compressed, in base 64."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(base64.b64decode(encoded), _MAX_TESTS_BYTES)
    if unpacking.unconsumed_tail:
        raise EvaluationError("a problem's tests are too long", where="lcb", expected=f"{_MAX_TESTS_BYTES} bytes")
    text = _TextOnly(io.BytesIO(data)).load()
    return json.loads(text)


def _graded(self: Any, model_response: Any, doc: Any, **_: Any) -> float:
    from lighteval.tasks.tasks.lcb.codegen_metrics import extract_code

    tests = {name: doc.specific[name] for name in ("inputs", "outputs", "fn_name")}
    return float(passes(extract_code(model_response.final_text[0]), tests))


def passes(code: str, tests: dict[str, Any]) -> bool:
    """Whether a program passes all tests of its problem; it runs in the sandbox."""
    from hubmerge.evaluation.sandbox import run_python

    # as a string literal: whatever the answer holds, it is an argument and no code of the grader's
    check = (
        f"{grader()}\n{_ASKING}\n"
        f"outcome = run_test({{'input_output': given}}, test={code!a}, timeout={_TEST_S})\n"
        "assert outcome and all(passed is True for passed in outcome), outcome\n"
    )
    wall_s = (_TEST_S + 1) * len(tests["inputs"]) + _SLACK_S
    return run_python(f"{grader()}\n{_ANSWERING}", check, given=json.dumps(tests), timeout_s=wall_s)


@cache
def grader() -> str:
    """The source of lighteval's grading functions, without what it needs other packages for.

    It is read and not imported: the module raises Python's limit on the digits of a number for the whole process.
    """
    found = importlib.util.find_spec("lighteval.tasks.tasks.lcb.codegen_metrics")
    assert found is not None, "it comes with the extra for evaluations"
    kept: list[ast.stmt] = []
    for node in ast.parse(Path(str(found.origin)).read_text("utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            if not {name.partition(".")[0] for name in names} & _NOT_IN_THE_SANDBOX:
                kept.append(node)
        elif isinstance(node, ast.Assign) or getattr(node, "name", "") in _GRADER:
            kept.append(node)
    if lacking := _GRADER - {getattr(node, "name", "") for node in kept}:
        raise EvaluationError("this lighteval grades otherwise", where="lcb", got=f"no {sorted(lacking)}")
    # the sandbox is the guard
    return "def reliability_guard(*_):\n    pass\n" + ast.unparse(ast.Module(kept, []))
