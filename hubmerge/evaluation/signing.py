"""Signs results, and what the keepers of a results dataset say of them: an Ed25519 signature over the content, which
anyone can check with the public key.

    signed bytes = "hubmerge result 1\\n" + JSON of the result without its signature and without fields that have their
                   default value; keys sorted, no spaces, ASCII

    signed bytes = "hubmerge flags 1\n" + JSON of an entry without its signature, likewise

Fields at their default are left out so that a later field with a default invalidates no signature. The signature names
the version of the suite under which it was made.

Checking and signing need `cryptography`; nothing here imports it before it is needed.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal

from hubmerge.evaluation.result import EvaluationResult, Signature
from hubmerge.machine.extras import require

# signed by a trusted key; no trusted key vouches; names a trusted key that did not sign it
Provenance = Literal["signed", "community", "forged"]


def signed(result: EvaluationResult, seed: bytes, run_by: str) -> EvaluationResult:
    """The result as run by `run_by`, signed with the private key (`seed`, 32 bytes)."""
    claimed = result.model_copy(update={"run_by": run_by, "signature": None})
    value = _sign(_content(claimed, claimed.suite_version), seed)
    signature = Signature(key=public_key(seed), suite_version=claimed.suite_version, value=value)
    return claimed.model_copy(update={"signature": signature})


def public_key(seed: bytes) -> str:
    """The public key of a private one, 64 hex digits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw().hex()


def provenance(result: EvaluationResult, trusted: Collection[str]) -> Provenance:
    """Whether a believed key signed the result; `trusted` are the public keys that are believed."""
    signature = result.signature
    if signature is None:
        return "community"
    return _provenance(signature.key, signature.value, _content(result, signature.suite_version), trusted)


def signed_entry(purpose: str, entry: Mapping[str, Any], seed: bytes) -> dict[str, Any]:
    """The entry of a keepers' file (board/files.py) with its signature; `purpose` is the name of its list."""
    signature = {"key": public_key(seed), "value": _sign(_bytes(purpose, entry), seed)}
    return {**entry, "signature": signature}


def entry_provenance(purpose: str, entry: Mapping[str, Any], signature: object, trusted: Collection[str]) -> Provenance:
    """Whether a believed key signed the entry; anything may stand in place of a signature."""
    parts = [signature.get("key"), signature.get("value")] if isinstance(signature, dict) else []
    if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        return "community"
    return _provenance(str(parts[0]), str(parts[1]), _bytes(purpose, entry), trusted)


def _sign(content: bytes, seed: bytes) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed).sign(content).hex()


def _provenance(key: str, value: str, content: bytes, trusted: Collection[str]) -> Provenance:
    if key not in trusted:
        return "community"
    require("eval", "the check of a signature", "cryptography")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(value), content)
    except (InvalidSignature, ValueError):
        return "forged"
    return "signed"


def _content(result: EvaluationResult, suite_version: str) -> bytes:
    document = result.model_dump(mode="json", exclude={"signature"}, exclude_defaults=True)
    document["suite_version"] = suite_version
    return _bytes("result", document)


def _bytes(purpose: str, document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"hubmerge {purpose} 1\n{text}".encode()
