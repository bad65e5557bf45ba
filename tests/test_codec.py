"""What a checkpoint may hold: every plain state comes back as it was, and what is none is refused by its place."""

import json
import math
from collections import OrderedDict, defaultdict, namedtuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import identical

from eventloop.checkpoint import pack, unpack
from eventloop.checkpoint.codec import RESERVED
from eventloop.checkpoint.staging import write_file
from eventloop.checkpoint.tensor_file import read_tensors

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def through_files(value, folder):
    """The value after a way through the two files of a checkpoint."""
    tensors = {}
    text = json.dumps(pack(value, "state", tensors), allow_nan=False)
    path = folder / "x.safetensors"
    path.unlink(missing_ok=True)
    write_file(path, tensors)
    return unpack(json.loads(text), read_tensors([path]))


def made(dtype, shape):
    count = math.prod(shape)
    return (torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count)).to(dtype).reshape(shape)


tensors = st.builds(made, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3))
arrays = tensors.filter(lambda t: t.dtype in (torch.float32, torch.int64, torch.bool)).map(torch.Tensor.numpy)
texts = st.text(max_size=4) | st.sampled_from(sorted(RESERVED))
floats = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
scalars = st.none() | st.booleans() | st.integers() | floats | texts
keys = texts | st.integers(-2, 2) | st.booleans() | st.none() | st.tuples(st.integers(0, 1), texts)
states = st.recursive(
    scalars | tensors | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(states)
def test_a_state_comes_back_as_it_was(tmp_path_factory, state):
    assert identical(through_files(state, tmp_path_factory.getbasetemp()), state)


@given(st.dictionaries(st.sampled_from(sorted(RESERVED)), st.integers() | st.lists(st.integers()), min_size=1))
def test_reserved_keys_are_the_users_too(state):
    assert unpack(json.loads(json.dumps(pack(state, "state", {}))), {}) == state


def test_equal_places_are_kept_apart(tmp_path):
    state = {1: torch.tensor(1), "1": torch.tensor(2), "a.b": torch.tensor(3), "a": {"b": torch.tensor(4)}}
    assert identical(through_files(state, tmp_path), state)


def test_minus_zero_and_large_numbers_keep_every_bit(tmp_path):
    first, *rest = through_files([-0.0, 5e-324, 0.1 + 0.2, 2**200], tmp_path)
    assert math.copysign(1, first) == -1
    assert rest == [5e-324, 0.1 + 0.2, 2**200]


def test_subclasses_of_plain_types_come_back_plain(tmp_path):
    pair = namedtuple("pair", "a b")
    state = [pair(1, 2), OrderedDict(a=1), defaultdict(int, b=2), numpy.float64(0.5), numpy.int32(3), numpy.bool_(True)]
    back = through_files(state, tmp_path)
    assert back == [(1, 2), {"a": 1}, {"b": 2}, 0.5, 3, True]
    assert [type(value) for value in back] == [tuple, dict, dict, float, int, bool]


def test_views_of_one_storage_come_back_apart(tmp_path):
    base = torch.arange(12.0)
    back = through_files({"all": base, "row": base[3:6], "every": base[::2], "turned": base.view(3, 4).T}, tmp_path)
    assert identical(
        back, {"all": base, "row": base[3:6], "every": base[::2], "turned": base.view(3, 4).T.contiguous()}
    )
    back["all"].zero_()
    assert back["row"].tolist() == [3, 4, 5]


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path):
    tied = torch.zeros(1000)
    back = through_files({"a": tied, "b": tied, "c": tied.clone()}, tmp_path)
    assert (tmp_path / "x.safetensors").stat().st_size < 2 * 4000 + 500
    back["a"].fill_(1)
    assert [float(back[name][0]) for name in "abc"] == [1, 1, 0]


def test_a_conjugate_view_keeps_its_sign(tmp_path):
    number = torch.tensor([1 + 2j], dtype=torch.complex64)
    back = through_files([number, number.conj(), number.conj().imag], tmp_path)
    assert [part.tolist() for part in back] == [[1 + 2j], [1 - 2j], [-2.0]]


def test_what_was_read_does_not_need_the_file(tmp_path):
    back = through_files({"a": torch.ones(5), "b": numpy.ones(2)}, tmp_path)
    file = tmp_path / "x.safetensors"
    with file.open("r+b") as damaged:
        damaged.write(bytes(file.stat().st_size))
    back["a"] += 1
    back["b"] += 1
    assert (back["a"].tolist(), back["b"].tolist()) == ([2.0] * 5, [2.0] * 2)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "builtins.object"),
        (print, "builtins.builtin_function_or_method"),
        (b"raw", "builtins.bytes"),
        ({1, 2}, "builtins.set"),
        (1j, "builtins.complex"),
        (numpy.longdouble(1), "numpy.longdouble"),
        (numpy.array(["a"]), "numpy.ndarray"),
        (numpy.array([object()]), "numpy.ndarray"),
    ],
)
def test_anything_else_is_refused_by_its_place(value, kind):
    state = {"callbacks": {"Mine": [0, {"deep": value}]}}
    with pytest.raises(TypeError, match=rf"^bus\.callbacks\.Mine\.1\.deep is a {kind}; a state is plain JSON"):
        pack(state, "bus", {})


def test_a_key_that_is_no_plain_value_is_refused_too():
    with pytest.raises(TypeError, match=r"^bus\.key is a builtins\.frozenset"):
        pack({frozenset(): 1}, "bus", {})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.zeros(2, device="meta"),
        torch.zeros(2, dtype=torch.complex128),
    ],
    ids=["sparse", "meta", "complex128"],
)
def test_a_tensor_that_no_file_can_hold_is_refused_by_its_name(tensor, tmp_path):
    with pytest.raises(TypeError, match=r"^bus\.Mine\.weights is a .* tensor; a checkpoint holds dense tensors"):
        write_file(tmp_path / "x.safetensors", {"fine": torch.ones(1), "bus.Mine.weights": tensor})
    assert not list(tmp_path.iterdir())
