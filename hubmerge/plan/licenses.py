"""The license that a merge may carry: the strictest of its parents', never a guess.

A merge is a derivative of every parent, so all their terms bind it at once. The Hub's license ids are ordered by
"includes the conditions of": `covers(a, b)` holds where a work under b may be passed on under a. The order is
partial. `strictest` keeps the inputs that no other input covers: one left is the answer; several left bind side by
side, which the Hub calls `other`, with a name that lists them. An input that states no license, or none that is
known here, leaves the choice to the user, who may not choose less than the known inputs demand.

This is bookkeeping of what cards state, not legal advice. Where texts leave room, two licenses are left apart:
`other` claims too little, which harms nobody; a wrong common license would launder one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from hubmerge.errors import RecipeError


def _ids(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Public domain, then licenses that ask for little more than their notice. A chain: each asks for at least as much
# as the one before. Dedications ask for nothing (CC0 sec. 2); zlib and Boost drop the notice in binaries; ISC, MIT
# and PostgreSQL want it in all copies; BSD names binaries too, NCSA and BSD-3 add the no-endorsement clause.
_NOTICE = _ids("cc0-1.0 pddl unlicense wtfpl zlib bsl-1.0 isc mit postgresql bsd-2-clause ncsa bsd-3-clause")
# Permissive with conditions of their own, hence side by side: Apache sec. 4 (changes stated) and its patent
# termination; CC BY sec. 2a5 (no technical measures); plain "bsd" names no version and may mean the four-clause one.
_FREE = _ids(
    "bsd apache-2.0 ecl-2.0 bsd-3-clause-clear artistic-2.0 afl-3.0 odc-by etalab-2.0 cdla-permissive-2.0 "
    "cdla-permissive-1.0 openmdw-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0"
)
# Nothing else takes these up: reciprocity by file (MS-PL sec. 3D, OFL sec. 5), renaming (LPPL sec. 6), vendor texts.
_APART = _ids("ms-pl ofl-1.1 lppl-1.3c apple-ascl")
_GNU = _ids("lgpl lgpl-2.1 lgpl-3.0 gpl gpl-2.0 gpl-3.0 agpl-3.0")
# Copyleft and share-alike: each text wants derivatives under itself. Some have compatibility clauses (MPL-2 sec. 3.3,
# the EUPL's appendix, BY-SA 4.0 → GPL-3); which side applies is a choice that no card states, so they are left apart.
_COPYLEFT = (
    *_GNU,
    *_ids("mpl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 osl-3.0 gfdl cc-by-sa-3.0 cc-by-sa-4.0 odbl cdla-sharing-1.0"),
    "lgpl-lr",
)
# Model licenses pass their own text, names and use restrictions on to every derivative (Llama sec. 1b, Gemma
# sec. 3.1, OpenRAIL sec. 4-5 with attachment A), and no version says that it may be replaced by another one.
_MODEL = _ids(
    "llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 gemma grok2-community openrail openrail++ creativeml-openrail-m "
    "bigscience-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m deepfloyd-if-license c-uda"
)
# Not for commerce, or for research only.
_NONCOMMERCIAL = _ids(
    "cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 "
    "fair-noncommercial-research-license apple-amlr h-research intel-research"
)
# A merge is adapted material, which these forbid to share (BY-ND 4.0 sec. 2a1).
NO_DERIVATIVES = frozenset(("cc-by-nd-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0"))
# Ids of the Hub that name no text: "cc" may be any Creative Commons license, those without derivatives included.
UNDECIDED = frozenset(("unknown", "other", "cc"))

_UNSTATED = "unstated-terms"
_CHOSEN = "chosen by the user"
_OWN = re.compile(r"other \(([a-z0-9\-.]{1,96})\)")  # a card's license_name, as hub/names.py puts it

# (covered, covering) within families.
_SUCCESSORS = (
    ("cdla-permissive-2.0", "cdla-permissive-1.0"),  # 1.0 demands more of who passes data on
    # CC BY adaptations may be under any license that keeps its conditions
    ("cc-by-2.0", "cc-by-2.5"),
    ("cc-by-2.5", "cc-by-3.0"),
    ("cc-by-3.0", "cc-by-4.0"),
    ("cc-by-sa-3.0", "cc-by-sa-4.0"),  # BY-SA 3.0 sec. 4b: adaptations under a later version
    # LGPL-3 is GPL-3 with permissions that may be dropped (sec. 2b), GPL-3 sec. 13 lets a work join one under AGPL-3,
    # LGPL-2.1 sec. 3 allows GPL-2 or later. "gpl-2.0" does not say "or later", so 2 and 3 stay apart. Plain gpl and
    # lgpl state no version; the recipient may pick one (GPL-2 sec. 9), which is not done for them here.
    ("lgpl-2.1", "gpl-2.0"),
    ("lgpl-2.1", "gpl-3.0"),
    ("lgpl-3.0", "gpl-3.0"),
    ("gpl-3.0", "agpl-3.0"),
    ("lgpl", "gpl"),
    # BY-NC asks adaptations to stay non-commercial without naming their license (sec. 2a1), so later versions and
    # BY-NC-SA of the same version take it up; ShareAlike allows later versions
    ("cc-by-nc-2.0", "cc-by-nc-3.0"),
    ("cc-by-nc-3.0", "cc-by-nc-4.0"),
    ("cc-by-nc-2.0", "cc-by-nc-sa-2.0"),
    ("cc-by-nc-3.0", "cc-by-nc-sa-3.0"),
    ("cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
    ("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0"),
    ("cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0"),
)
# Permissive licenses that a GNU license must not take up (the FSF's license list): Apache's patent and indemnity
# terms are further restrictions to version 2, not to 3; AFL-3 and the four-clause BSD are to every version.
_REFUSED = frozenset(
    {
        *((free, gnu) for free in ("apache-2.0", "ecl-2.0") for gnu in ("gpl-2.0", "lgpl-2.1")),
        *((free, gnu) for free in ("afl-3.0", "bsd") for gnu in _GNU),
    }
)

# Texts that must travel with the model, where the Hub's id alone is no link to them.
_LINKS = MappingProxyType(
    {
        "llama2": "https://www.llama.com/llama2/license/",
        "llama3": "https://www.llama.com/llama3/license/",
        "llama3.1": "https://www.llama.com/llama3_1/license/",
        "llama3.2": "https://www.llama.com/llama3_2/license/",
        "llama3.3": "https://www.llama.com/llama3_3/license/",
        "llama4": "https://www.llama.com/llama4/license/",
        "gemma": "https://ai.google.dev/gemma/terms",
        "bigscience-bloom-rail-1.0": "https://huggingface.co/spaces/bigscience/license",
        "bigcode-openrail-m": "https://huggingface.co/spaces/bigcode/bigcode-model-license-agreement",
    }
)


def _table() -> dict[str, frozenset[str]]:
    """id → everything it covers, itself included: the transitive closure of the pairs (covered, covering)."""
    strict = (*_COPYLEFT, *_MODEL, *_NONCOMMERCIAL)
    pairs = (
        *pairwise(_NOTICE),
        *((_NOTICE[-1], name) for name in (*_FREE, *_APART)),
        *((free, name) for free in _FREE for name in strict if (free, name) not in _REFUSED),
        *_SUCCESSORS,
    )
    below = {name: {name} for name in (*_NOTICE, *_FREE, *_APART, *strict)}
    while any(below[low] - below[high] for low, high in pairs):
        for low, high in pairs:
            below[high] |= below[low]
    return {name: frozenset(names) for name, names in below.items()}


_COVERS = MappingProxyType(_table())
KNOWN = tuple(_COVERS)  # from permissive to strict; the order in which licenses are named


@dataclass(frozen=True)
class LicenseDecision:
    """The license that a merge's card may state. `id` is "unknown" while `needs_choice`, never a default."""

    id: str
    reason: str
    name: str | None = None  # for "other": the licenses that bind, joined
    link: str | None = None
    needs_choice: bool = False
    binding: tuple[str, ...] = ()  # the known inputs that no other input covers, in table order
    unclear: tuple[str, ...] = ()  # what is wrong with the other inputs
    terms: tuple[str, ...] = ()  # the names of all that binds, for a user who chooses "other"

    def as_dict(self) -> dict[str, str]:
        """The form of a report's `license`."""
        values = {"id": self.id, "name": self.name, "link": self.link, "reason": self.reason}
        return {key: value for key, value in values.items() if value is not None}


def covers(strict: str, lenient: str) -> bool:
    """True where a work under `lenient` may be passed on under `strict`; both are ids from `KNOWN`."""
    return lenient in _COVERS[strict]


def stated_names(stated: str | None) -> list[str]:
    """What one input states, name by name: all bind that a list names (hub/names.py joins them)."""
    return _normal(stated).split(" and ")


def strictest(licenses: Sequence[str | None]) -> LicenseDecision:
    """The license that all inputs together allow; RecipeError where one forbids derivatives.

    The order and number of the inputs do not matter. The `binding` of one call may be an input of another.
    """
    known: list[str] = []
    unclear: list[str] = []
    terms: set[str] = set()
    for stated in licenses:
        names = stated_names(stated)
        bound = list(names)
        for name in names:
            if own := _OWN.fullmatch(name):
                # an id of the Hub, or what a merge whose parents have several was published with
                parts = own[1].split("-and-")
                within = [_BY_PART[part] for part in parts if part in _BY_PART]
                bound += within
                terms |= {part for part in parts if part not in _BY_PART} if within else {own[1]}
            elif name not in _COVERS:
                terms.add(_UNSTATED)
        if forbidding := NO_DERIVATIVES.intersection(bound):
            raise RecipeError(
                "a license that forbids derivatives, and a merge is one",
                where="the licenses of the models",
                got=min(forbidding),
                next_step="Remove the model that carries it.",
            )
        known += [name for name in bound if name in _COVERS]
        unclear += map(_complaint, [name for name in names if name not in _COVERS][:1])
    distinct = [name for name in KNOWN if name in known]
    binding = tuple(n for n in distinct if not any(n != other and covers(other, n) for other in distinct))
    if unclear or not binding:
        notes = tuple(sorted(set(unclear))) or ("there is no input",)
        reason = f"{'; '.join(notes)}: choose a license that the parents allow"
        if binding:
            reason += f", at least as strict as {_and(binding)}"
        named = (*binding, *sorted(terms, key=lambda term: (term == _UNSTATED, term)))
        return LicenseDecision("unknown", reason, needs_choice=True, binding=binding, unclear=notes, terms=named)
    if len(binding) > 1:
        reason = f"{_and(binding)} each bind the merge and neither includes the other; read them before publishing"
        return LicenseDecision("other", reason, name=_joined(binding), binding=binding)
    [only] = binding
    reason = f"every input states {only}" if len(distinct) == 1 else f"{only} is the strictest of {_and(distinct)}"
    return LicenseDecision(only, reason, link=_LINKS.get(only), binding=binding)


def choose(decision: LicenseDecision, chosen: str | None) -> LicenseDecision:
    """The decision with the user's choice; RecipeError where one is missing, unknown or too permissive."""
    if chosen is None:
        if decision.needs_choice:
            raise RecipeError(
                "the license of the merge must be chosen",
                where="the licenses of the models",
                got="; ".join(decision.unclear),
                next_step="Read the parents' terms and state a license, in the form or with --license (mit, other, …).",
            )
        return decision
    name = _normal(chosen)
    because = f"{_CHOSEN} ({'; '.join(decision.unclear) or decision.reason})"
    if name == "other":
        # it claims nothing by itself: the parents' terms stay in its name
        terms = decision.terms or decision.binding or (_UNSTATED,)
        return LicenseDecision("other", because, name=_joined(terms), binding=decision.binding)
    if name not in _COVERS:
        raise RecipeError(
            "not a license that a merge can carry",
            where="license",
            expected="a license id of the Hub that names a text, or other",
            got=_shown(name),
            next_step="Write it as the Hub's list of licenses does, such as apache-2.0.",
        )
    missed = [b for b in decision.binding if not covers(name, b)]
    if missed:
        raise RecipeError(
            "a license that the inputs do not allow",
            where="license",
            expected=f"one that includes the conditions of {_and(missed)}",
            got=name,
            next_step="Choose a stricter one, or other.",
        )
    return LicenseDecision(name, because, link=_LINKS.get(name), binding=(name,))


def option(license: Any) -> str:
    """What a command that makes a merge again adds, where its user chose the license that its report states."""
    stated = license if isinstance(license, Mapping) else {}
    chosen = str(stated.get("reason")).startswith(_CHOSEN) and stated.get("id") in [*KNOWN, "other"]
    return f" --license {stated['id']}" if chosen else ""


def _normal(stated: str | None) -> str:
    return (stated or "").strip().lower()


def _complaint(name: str) -> str:
    if not name:
        return "an input states no license"
    if name in UNDECIDED:
        return f"an input states {name!r}, which names no license text"
    if _OWN.fullmatch(name):
        return f"an input states {name}, a license text of its own"
    # TRL writes the word "license" into the cards of the models that it trains
    return f"an input states {_shown(name)}, which is no license id of the Hub"


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 60 else name[:60] + "…")


def _joined(names: Iterable[str]) -> str:
    """A name that the Hub accepts: lower case, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.\-]+", "-", "-and-".join(n.replace("+", "p") for n in names))


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


_BY_PART = MappingProxyType({_joined([name]): name for name in (*KNOWN, *NO_DERIVATIVES)})  # of a joined name
