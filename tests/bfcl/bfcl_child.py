"""bfcl-eval's own verdicts, computed in its own environment (.cache/bfcl): one JSON line in, one JSON line out.

In: `{"category", "function", "ground_truth", "answers": [[form, text], …]}`. Out: one [valid, reason] per answer.
In: `{"values": [[language, declared type, item type, text], …]}`. Out: the `repr` of each, converted.

`form` says whose decoder reads the text: `prompting` is the one of the models that are asked for a list of calls,
`tagged` the one of Qwen's tool-call tags, `json` takes the calls as they stand in a JSON list (the package's own JSON
format is not used in these categories; it cuts a list of calls at the first `}]` inside an argument). The steps and
their order are those of the package's own runner; an exception in the decoder is "no call", one in the checker ends the
package's run and is told as `crash`. The registry of models and the handlers' base class import the client of every
provider, so stand-ins take their place; neither takes part in a verdict beyond the one switch that is set here.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import types
import warnings
from typing import Any

warnings.simplefilter("ignore")


def _stand_in(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


_stand_in("overrides", override=lambda method: method, final=lambda method: method)
_stand_in("bfcl_eval.model_handler.local_inference.base_oss_handler", OSSHandler=object)
_stand_in(
    "bfcl_eval.constants.model_config",
    MODEL_CONFIG_MAPPING={"model": types.SimpleNamespace(underscore_to_dot=False)},
)

from bfcl_eval.constants.enums import Language, ReturnFormat  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.type_convertor.java_type_converter import java_type_converter  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.type_convertor.js_type_converter import js_type_converter  # noqa: E402
from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler  # noqa: E402
from bfcl_eval.model_handler.utils import default_decode_ast_prompting  # noqa: E402
from bfcl_eval.utils import (  # noqa: E402
    is_empty_output,
    is_function_calling_format_output,
    is_java,
    is_js,
    is_relevance_or_irrelevance,
)


def decode(text: str, form: str, language: ReturnFormat) -> Any:
    if form == "tagged":
        handler = QwenFCHandler.__new__(QwenFCHandler)
        return handler.decode_ast(text, language, False)
    if form == "json":
        return [{call["function"]: call["parameters"]} for call in json.loads(text)]
    text = text.split("</think>")[-1].lstrip("\n")  # as the handlers of reasoning models cut an answer
    return default_decode_ast_prompting(text, language, False)


def verdict(case: dict[str, Any], form: str, text: str) -> tuple[bool, str]:
    category = case["category"]
    if is_relevance_or_irrelevance(category):
        try:
            called = not is_empty_output(decode(text, form, ReturnFormat.PYTHON))
        except Exception:
            called = False
        return (not called if "irrelevance" in category else called), "call" if called else "no call"
    name = "java" if is_java(category) else "javascript" if is_js(category) else "python"
    try:
        calls = decode(text, form, ReturnFormat(name))
    except Exception as error:
        return False, f"decoder: {error!r}"[:200]
    if not is_function_calling_format_output(calls):
        return False, "decoder: wrong format"
    try:
        result = ast_checker(case["function"], calls, case["ground_truth"], Language(name), category, "model")
    except Exception as error:
        return False, f"crash: {error!r}"[:200]
    return result["valid"], str(result.get("error_type", ""))


def converted(language: str, declared: str, item: str | None, text: str) -> str:
    try:
        return repr((java_type_converter if language == "java" else js_type_converter)(text, declared, item))
    except Exception:
        return "raised"


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        with contextlib.redirect_stdout(io.StringIO()):  # the package prints what it cannot convert
            if "values" in case:
                said: list[Any] = [converted(*value) for value in case["values"]]
            else:
                said = [verdict(case, form, text) for form, text in case["answers"]]
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
