"""Hostile safetensors headers are refused, and nothing is accepted that safetensors itself would refuse."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import save

from hubmerge.errors import HeaderError
from hubmerge.sources.header import MAX_HEADER_BYTES, Header, header_length, parse_header, serialize_header


def entry(dtype: str = "F32", shape: str = "[2]", offsets: str = "[0,8]") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def parse(text: str | bytes, data_bytes: int = 8) -> Header:
    raw = text if isinstance(text, bytes) else text.encode()
    return parse_header(raw, 8 + len(raw) + data_bytes, "x.safetensors in org/x")


def file_of(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


@pytest.mark.parametrize("length", [0, 1, MAX_HEADER_BYTES + 1, 2**31, 2**63, 2**64 - 1])
def test_an_impossible_header_length_is_refused_before_anything_is_read(length):
    with pytest.raises(HeaderError, match="impossible length") as caught:
        header_length(struct.pack("<Q", length), "x")
    assert caught.value.problems[0].got == str(length)


def test_a_file_shorter_than_its_length_field_is_refused_and_the_longest_allowed_length_accepted():
    with pytest.raises(HeaderError, match="too short"):
        header_length(b"\1\0\0\0\0\0\0", "x")
    assert header_length(struct.pack("<Q", MAX_HEADER_BYTES), "x") == MAX_HEADER_BYTES


TWO = '{"a":' + entry() + ',"b":%s}'
HOSTILE: dict[str, tuple[str | bytes, int]] = {
    "empty": ("", 0),
    "no object": ("[]", 0),
    "a leading space": (' {"a":' + entry() + "}", 8),
    "a byte order mark": (b'\xef\xbb\xbf{"a":' + entry().encode() + b"}", 8),
    "truncated": ('{"a":{"dtype":"F32","sha', 8),
    "no closing brace": ('{"a":' + entry(), 8),
    "text after the end": ('{"a":' + entry() + "}{}", 8),
    "a trailing comma": ('{"a":' + entry() + ",}", 8),
    "a trailing comma in a list": ('{"a":' + entry(shape="[2,]") + "}", 8),
    "a colon for a comma": ('{"a":' + entry() + ':"b":' + entry(offsets="[8,16]") + "}", 16),
    "a missing comma": ('{"a":' + entry() + '"b":' + entry() + "}", 8),
    "nesting 10^5": ('{"a":' * 100_000, 8),
    "nested lists 10^5": ('{"a":' + entry(shape="[" * 100_000) + "}", 8),
    "an integer of 5000 digits": ('{"a":' + entry(shape=f"[{'9' * 5000}]") + "}", 8),
    "an integer of 2^64": ('{"a":' + entry(shape="[0]", offsets=f"[0,{2**64}]") + "}", 8),
    "a repeated tensor": ('{"a":' + entry() + ',"a":' + entry(offsets="[8,16]") + "}", 16),
    "a repeated tensor at the same place": ('{"a":' + entry() + ',"a":' + entry() + "}", 8),
    "a repeated field": ('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
    "three fields, one twice": ('{"a":{"shape":[2],"shape":[2],"data_offsets":[0,8]}}', 8),
    "repeated metadata": ('{"__metadata__":{},"__metadata__":{},"a":' + entry() + "}", 8),
    "a repeated metadata key": ('{"__metadata__":{"k":"1","k":"2"},"a":' + entry() + "}", 8),
    "an unknown field": ('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', 8),
    "a missing field": ('{"a":{"dtype":"F32","shape":[2]}}', 8),
    "an empty entry": ('{"a":{}}', 8),
    "an entry that is null": ('{"a":null}', 0),
    "a boolean dimension": ('{"a":' + entry(shape="[true,2]") + "}", 8),
    "a float dimension": ('{"a":' + entry(shape="[2.0]") + "}", 8),
    "NaN": ('{"a":' + entry(shape="[NaN]") + "}", 8),
    "a string dimension": ('{"a":' + entry(shape='["2"]') + "}", 8),
    "a leading zero": ('{"a":' + entry(shape="[02]") + "}", 8),
    "a plus sign": ('{"a":' + entry(shape="[+2]") + "}", 8),
    "minus zero": ('{"a":' + entry(offsets="[-0,8]") + "}", 8),
    "a negative dimension": ('{"a":' + entry(shape="[-2]") + "}", 8),
    "a boolean offset": ('{"a":' + entry(dtype="U8", shape="[1]", offsets="[false,true]") + "}", 1),
    "a reversed range": ('{"a":' + entry(offsets="[8,0]") + "}", 8),
    "three offsets": ('{"a":' + entry(offsets="[0,8,8]") + "}", 8),
    "one offset": ('{"a":' + entry(offsets="[8]") + "}", 8),
    "the shape as text": ('{"a":{"dtype":"F32","shape":"F32","data_offsets":[0,8]}}', 8),
    "the dtype as a list": ('{"a":{"dtype":[2],"shape":[2],"data_offsets":[0,8]}}', 8),
    "a range of the wrong size": ('{"a":' + entry(shape="[3]") + "}", 8),
    "overlapping ranges": (TWO % entry(offsets="[4,12]"), 12),
    "the same range twice": (TWO % entry(offsets="[0,8]"), 8),
    "a hole": (TWO % entry(offsets="[12,20]"), 20),
    "a first tensor that does not begin at 0": ('{"a":' + entry(offsets="[8,16]") + "}", 16),
    "less than the file": ('{"a":' + entry() + "}", 9),
    "more than the file": ('{"a":' + entry() + "}", 7),
    "a range beyond the file": ('{"a":' + entry(shape=f"[{2**40}]", offsets=f"[0,{2**42}]") + "}", 8),
    "shape [0, 2^62]": ('{"a":' + entry(shape=f"[0,{2**62}]", offsets="[0,0]") + "}", 0),
    "a shape whose product overflows": ('{"a":' + entry(shape=f"[{2**40},{2**40},0]", offsets="[0,0]") + "}", 0),
    "nine dimensions": ('{"a":' + entry(shape="[1,1,1,1,1,1,1,1,2]") + "}", 8),
    "an unknown dtype": ('{"a":' + entry(dtype="F33") + "}", 8),
    "a dtype in small letters": ('{"a":' + entry(dtype="f32") + "}", 8),
    "metadata that is a list": ('{"__metadata__":["x"],"a":' + entry() + "}", 8),
    "metadata that holds a number": ('{"__metadata__":{"x":1},"a":' + entry() + "}", 8),
    "metadata that holds a table": ('{"__metadata__":{"x":{}},"a":' + entry() + "}", 8),
    "metadata with half a surrogate pair": ('{"__metadata__":{"x":"\\ud800"},"a":' + entry() + "}", 8),
    "metadata with bytes that are no UTF-8": (b'{"__metadata__":{"x":"\xff"},"a":' + entry().encode() + b"}", 8),
    "metadata with an unknown escape": ('{"__metadata__":{"x":"\\q"},"a":' + entry() + "}", 8),
    "metadata with a bare newline": ('{"__metadata__":{"x":"\n"},"a":' + entry() + "}", 8),
}
LARGE: dict[str, Callable[[], bytes]] = {
    "ten million dimensions": lambda: ('{"a":' + entry(shape="[" + "1," * 10_000_000 + "2]") + "}").encode(),
    "metadata of two million entries": lambda: (
        b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(2_000_000)) + b"}}"
    ),
    "metadata with one key four million times": lambda: b'{"__metadata__":{' + b'"":"",' * 4_000_000 + b'"":""}}',
    "metadata with its keys twenty times": lambda: (
        b'{"__metadata__":{' + b",".join(b'"%x":""' % i for i in range(100_000)) * 20 + b"}}"
    ),
    "one entry of metadata of 24 MB": lambda: b'{"__metadata__":{"a":"' + "\U0001f600".encode() * 6_000_000 + b'"}}',
    "one entry of four million escapes": lambda: b'{"__metadata__":{"a":"' + b"\\u1234" * 4_000_000 + b'"}}',
    "eight million empty lists": lambda: b'{"a":[' + b"[]," * 8_000_000 + b"[]]}",
    "12 million empty lists": lambda: b'{"a":[' + b"[]," * 12_000_000 + b"[]]}",
    "a name of 24 MB": lambda: b'{"' + b"a" * 24_000_000 + b'":' + entry().encode() + b"}",
    "24 MB of white space before a fault": lambda: b'{"a"' + b" " * 24_000_000 + b"}",
}


def many(count: int) -> bytes:
    """As many tensors, of names of 66 digits."""
    entries = (b'"%066d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(count))
    return b"{" + b",".join(entries) + b"}"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(name):
    text, data_bytes = HOSTILE[name]
    with pytest.raises(HeaderError) as caught:
        parse(text, data_bytes)
    assert "x.safetensors in org/x" in str(caught.value)
    assert len(str(caught.value)) < 1000, "a hostile header must not flood the message"


def test_a_tensor_name_outside_the_allow_list_is_refused():
    odd = (
        "",
        "../../x",
        "a..b",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a b",
        "a\0b",
        "\u202egpj.exe",
        "naïve",
        ".hidden",
        "-x",
        "a" * 257,
    )
    for name in (*odd, "a\n", "<script>", "__metadata__x y"):
        for ensure_ascii in (True, False):
            with pytest.raises(HeaderError):
                parse("{" + json.dumps(name, ensure_ascii=ensure_ascii) + ":" + entry() + "}")


def test_names_of_real_checkpoints_are_accepted():
    names = ["model.layers.0.mlp.gate_up_proj", "h.0.attn-bias", "0", "_extra_state", "a" * 256]
    text = ",".join(f'"{n}":{entry(shape="[0]", offsets="[0,0]")}' for n in names)
    assert [e.name for e in parse("{" + text + "}", 0).tensors] == names


def test_more_tensors_than_allowed_are_refused(monkeypatch):
    monkeypatch.setattr("hubmerge.sources.header.MAX_TENSORS", 3)
    assert len(parse(many(3), 0).tensors) == 3
    with pytest.raises(HeaderError, match="too many tensors"):
        parse(many(4), 0)


def test_fields_may_stand_in_any_order_with_any_white_space():
    spaced = '{ "a" :\t{ "data_offsets" : [ 0 , 8 ] ,\n"shape":[ 2 ], "dtype" :"F32" } } \r\n '
    (tensor,) = parse(spaced).tensors
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.elements) == ("a", "F32", (2,), 2)
    assert (tensor.begin, tensor.end) == (8 + len(spaced), 16 + len(spaced))


def test_metadata_is_kept_and_scalars_and_empty_tensors_are_understood():
    metadata = '"__metadata__":{"format":"pt","no\\u0074e":"\\"é\\ud83d\\ude00"}'
    empty, scalar = entry(shape="[0,3]", offsets="[0,0]"), entry(shape="[]", offsets="[0,4]")
    text = f'{{{metadata},"e":{empty},"s":{scalar}}}'
    header = parse(text, 4)
    assert dict(header.metadata) == {"format": "pt", "note": '"é😀'}
    assert {e.name: (e.shape, e.elements) for e in header.tensors} == {"e": ((0, 3), 0), "s": ((), 1)}


def test_tensors_come_in_the_order_of_their_bytes():
    first, second = entry(offsets="[0,8]"), entry(offsets="[8,16]")
    assert [e.name for e in parse(f'{{"z":{first},"a":{second}}}', 16).tensors] == ["z", "a"]
    assert [e.name for e in parse(f'{{"z":{second},"a":{first}}}', 16).tensors] == ["a", "z"]


@pytest.mark.slow
def test_a_large_hostile_header_is_refused_and_costs_no_more_than_300_mb():
    # one child for all of them: its peak is that of the worst, the 25 MB of input included
    program = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import test_header
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, build in {**test_header.LARGE, "as many as allowed": lambda: test_header.many(200_000)}.items():
    try:
        test_header.parse(build(), 0)
        assert name == "as many as allowed", name
    except test_header.HeaderError as error:
        assert len(str(error)) < 1000, "a hostile header must not flood the message"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own
    print(name, peak // 1024)
    assert peak < 300_000, name
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- what we accept is a subset of what safetensors accepts ------------------------------------------------------

_numbers = st.sampled_from(["0", "1", "2", "3", "4", "8", "12", "16", "-0", "-1", "2.0", "1e0", "true", "null", "007"])
_lists = st.lists(_numbers, max_size=4).map(lambda items: "[" + ",".join(items) + "]")
_names = st.sampled_from(["a", "b", "c.weight", "__metadata__", "../x", "d\\u0065", "é"])
_entries = st.builds(
    lambda dtype, shape, offsets, order: (
        "{"
        + ",".join([f'"dtype":{dtype}', f'"shape":{shape}', f'"data_offsets":{offsets}', '"x":1'][i] for i in order)
        + "}"
    ),
    st.sampled_from(['"F32"', '"U8"', '"BF16"', '"F8_E4M3"', '"F8_E8M0"', '"C64"', '"F4"', '"f32"', "1"]),
    _lists,
    _lists,
    st.sampled_from([(0, 1, 2), (2, 1, 0), (0, 1), (0, 1, 2, 3), (0, 0, 1)]),
)
_values = st.one_of(_entries, _entries, _entries, st.sampled_from(['{"k":"v"}', '{"k":"\\ud800"}', "{}", "[]", '"s"']))
_space = st.sampled_from(["", "", "", " ", "\n\t", "\x0b"])
_headers = st.builds(
    lambda members, space, end: "{" + space + ("," + space).join(f'"{n}":{space}{v}' for n, v in members) + "}" + end,
    st.lists(st.tuples(_names, _values), max_size=3),
    _space,
    st.sampled_from(["", " ", "  \n", "x"]),
)


def assert_safetensors_agrees(text: str | bytes, data_bytes: int) -> bool:
    """True when we accept it; then safetensors must, too, with the same tensors at the same places."""
    try:
        header = parse(text, data_bytes)
    except HeaderError:
        return False
    content = file_of(text) + bytes(range(data_bytes))
    theirs = dict(deserialize(content))
    assert {e.name for e in header.tensors} == set(theirs)
    for e in header.tensors:
        assert (e.dtype, list(e.shape)) == (theirs[e.name]["dtype"], theirs[e.name]["shape"])
        assert bytes(theirs[e.name]["data"]) == content[e.begin : e.end]
    return True


@settings(max_examples=300, deadline=None)
@given(_headers, st.sampled_from([0, 1, 2, 4, 8, 12, 16]))
@example("{}", 0)
@example('{"a":' + entry(shape="[]", offsets="[0,4]") + "}", 4)
def test_whatever_is_accepted_safetensors_accepts_alike(text, data_bytes):
    assert_safetensors_agrees(text, data_bytes)


_DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
_DTYPES += [np.complex64, np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8, np.bool_]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "z_0", "0", "h.0.attn.bias", "model.layers.10.mlp.gate_up_proj.weight", "_x-y", "B"]),
        st.tuples(st.sampled_from(_DTYPES), st.lists(st.integers(0, 5), max_size=4)),
        min_size=1,  # without tensors the reference writer itself can write a broken header
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=3),
)
def test_every_file_of_the_reference_writer_is_accepted(tensors, metadata):
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in tensors.items()}
    content = save(arrays, metadata=metadata)
    length = header_length(content, "x")
    header = parse_header(content[8 : 8 + length], len(content), "x")
    assert {e.name: e.shape for e in header.tensors} == {n: a.shape for n, a in arrays.items()}
    assert dict(header.metadata) == metadata
    assert {e.name: e.end - e.begin for e in header.tensors} == {n: a.nbytes for n, a in arrays.items()}


# --- writing -----------------------------------------------------------------------------------------------------


def test_a_serialized_header_is_these_very_bytes():
    raw, ranges = serialize_header([("b", "BF16", (2, 3)), ("a", "F32", ()), ("e", "I8", (0,))], {"format": "pt"})
    text = (
        b'{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},'
        b'"a":{"dtype":"F32","shape":[],"data_offsets":[12,16]},"e":{"dtype":"I8","shape":[0],"data_offsets":[16,16]}}'
    )
    padded = text + b" " * 3
    assert len(padded) % 8 == 0
    assert raw == len(padded).to_bytes(8, "little") + padded
    start = 8 + len(padded)
    assert ranges == {"b": (start, start + 12), "a": (start + 12, start + 16), "e": (start + 16, start + 16)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parse('{"a":' + entry(dtype="F33") + "}"), ("'a'", "F33", "BF16")),
        (lambda: parse('{"a":' + entry(dtype="F4") + "}"), ("'a'", "less than a byte", "before it was quantized")),
        (lambda: parse(TWO % entry(offsets="[12,20]"), 20), ("'b'", "overlap others or leave a hole")),
        (lambda: parse('{"a":' + entry() + "}", 9), ("cover the file",)),
        (lambda: parse('{"a":' + entry(shape="[NaN]") + "}"), ("byte 5", "NaN")),
    ],
)
def test_an_error_says_which_tensor_and_what_was_found(call, words):
    with pytest.raises(HeaderError) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
    assert caught.value.code == "E_HEADER"
