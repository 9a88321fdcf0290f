"""Every refusal and failure that hubmerge can name, each with a stable code.

A message says what, where, expected and got, and what to do next. `retryable` says whether the same call can succeed
later without a change by the user. engine/distributed.py and workflows/jobs/jobs.py have errors of their own:
E_PROCESS, E_FENCE, E_JOB and E_BUSY.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


def printable(text: str) -> str:
    """`text` with an escape for every character that would steer a terminal; names and answers come from strangers."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Problem:
    """One reason why a job cannot run, in the same words on every surface."""

    code: str
    what: str
    where: str = ""
    expected: str = ""
    got: str = ""
    next_step: str = ""

    def __str__(self) -> str:
        text = self.what
        if self.where:
            text += f" in {self.where}"
        found = [f"expected {self.expected}"] * bool(self.expected) + [f"got {self.got}"] * bool(self.got)
        if found:
            text += ": " + ", ".join(found)
        if not text.endswith("."):
            text += "."
        if self.next_step:
            text += f" {self.next_step}"
        return printable(f"{self.code}: {text}")

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


class MisnamedError(ValueError):
    """A validator's error: one problem for each wrong part of a value; `where` is the path to it within the value."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(p).removeprefix(f"{p.code}: ") for p in problems))


class HubmergeError(Exception):
    """Base of all errors; `str()` of one can be shown to the user."""

    code: ClassVar[str] = "E_INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        expected: str = "",
        got: str = "",
        next_step: str = "",
        problems: Sequence[Problem] = (),
    ) -> None:
        own = Problem(self.code, what, where, expected, got, next_step)
        self.what = what
        self.problems: tuple[Problem, ...] = tuple(problems) or (own,)
        super().__init__("\n".join(str(p) for p in self.problems) if problems else str(own))

    def as_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": str(self),
            "retryable": self.retryable,
            "problems": [p.as_dict() for p in self.problems],
        }


class RecipeError(HubmergeError):
    code = "E_RECIPE"  # the recipe itself is wrong


class SettingsError(HubmergeError):
    code = "E_SETTINGS"  # a variable of the environment has no valid value, or the app a port that is taken


class MissingExtraError(HubmergeError):
    code = "E_EXTRA"  # packages that a command needs are not installed


class FormatError(HubmergeError):
    code = "E_FORMAT"  # weights that are no safetensors, or a file of another kind


class HeaderError(HubmergeError):
    code = "E_HEADER"  # a safetensors header that is corrupt or hostile


class IndexFileError(HubmergeError):
    code = "E_INDEX"  # a shard index that names what it must not


class SourceNotFoundError(HubmergeError):
    code = "E_SOURCE"  # a repo, folder or revision that is missing or unreadable


class SourceChangedError(HubmergeError):
    code = "E_SOURCE_CHANGED"  # a pinned source is gone or another


class GatedError(HubmergeError):
    code = "E_GATED"  # a gated repo that this token may not read


class CorruptError(HubmergeError):
    code = "E_CORRUPT"  # bytes that do not match their sha256


class IncompatibleError(HubmergeError):
    code = "E_INCOMPATIBLE"  # models that cannot be merged; carries every problem


class NonFiniteError(HubmergeError):
    code = "E_NONFINITE"  # NaN or Inf in an input or the output


class SensitivityError(HubmergeError):
    code = "E_SENSITIVITY"  # calibration data or a sensitivity file that does not fit the model


class EvaluationError(HubmergeError):
    code = "E_EVALUATION"  # a model, dataset or task that cannot be evaluated


class ResultError(HubmergeError):
    code = "E_RESULT"  # an evaluation result that is malformed or not credible


class RuleError(HubmergeError):
    code = "E_RULE"  # a watcher's rule that is wrong or matches too much


class DiskError(HubmergeError):
    code = "E_DISK"  # the disk is full, or refuses to be written
    retryable = True


class DeviceError(HubmergeError):
    code = "E_DEVICE"  # a device that was asked for and cannot be used


class FolderInUseError(HubmergeError):
    code = "E_IN_USE"  # another process works in this folder
    retryable = True


class MemoryLimitError(HubmergeError):
    code = "E_TOO_BIG"  # not enough memory


class TimeLimitError(HubmergeError):
    code = "E_TOO_LONG"  # a merge would take longer than the app's owner allows


class MachineFaultError(HubmergeError):
    code = "E_MACHINE"  # killed, or too slow, once: perhaps the machine's doing, which a second run tells
    retryable = True


class TargetExistsError(HubmergeError):
    code = "E_TARGET_EXISTS"  # the target holds something that this job did not make


class PermissionDeniedError(HubmergeError):
    code = "E_PERMISSION"  # the token may not do this


class HubUnavailableError(HubmergeError):
    code = "E_HUB"  # the Hub did not answer as it should (worth a retry)
    retryable = True


class CancelledError(HubmergeError):
    code = "E_CANCELLED"  # the user cancelled


class QuotaError(HubmergeError):
    code = "E_QUOTA"  # too many jobs for one user
    retryable = True


class LoginError(HubmergeError):
    code = "E_LOGIN"  # no usable token


class InternalError(HubmergeError):
    code = "E_INTERNAL"  # a bug in hubmerge
