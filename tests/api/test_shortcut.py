"""What is compiled of matmul and gemm: it decides as Python does, or leaves the call to it."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
import weakref

import numpy as np
import pytest
import scipy.linalg.blas
from helpers import run_python

import clgemm
from clgemm import settings
from clgemm.api import repeated, shortcut, small
from clgemm.dispatch import engines
from clgemm.host import blas as host_blas
from clgemm.problem import BY_DTYPE, PRECISIONS
from clgemm.runtime import registry

pytestmark = pytest.mark.contract
compiled = pytest.mark.skipif(
    shortcut.MODULE is None, reason="clgemm.api._shortcut was not compiled here"
)
module = sys.modules["clgemm.api.matmul"]
LIMIT = {dtype: host_blas.ONE_THREAD[dtype.kind == "c"] for dtype in BY_DTYPE}


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")


@pytest.fixture
def told():
    """Tell which function would compute, by name, instead of computing."""
    found = shortcut.MODULE.Shortcut(lambda *_, **__: "python")
    by = (lambda *_, **__: "matmul"), (lambda *_, **__: "dot")
    found.rules_of_matmul(*module.rules_of_shortcut(*by))
    return found


@pytest.fixture
def told_by_python(monkeypatch):
    """Tell the same of Python's function where nothing was multiplied before."""
    monkeypatch.setattr(registry, "in_use", None)
    monkeypatch.setattr(module, "_dot", lambda *_: "dot")
    monkeypatch.setattr(module, "_numpys", lambda *_: "matmul")
    for name in ("_by_modes", "_new_kind"):
        monkeypatch.setattr(module, name, lambda *_: "python")
    return clgemm.matmul.__func__


def _of(shape, dtype):
    """Make an array of any size that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _extents(rng, count):
    """Draw extents, zeros and ones among them, whose products are near all limits."""
    return [int(rng.choice([0, 1, 2, 7, 8, 9, int(2 ** rng.uniform(1, 17))])) for _ in range(count)]


def _shapes(rng):
    m, n, k, stack = _extents(rng, 4)
    return [
        *[((m, k), (k, n))] * 4, ((1, k), (k, n)), ((m, k), (k, 1)), ((m, 1), (1, n)),
        ((m, k), (k,)), ((k,), (k, n)), ((k,), (k,)), ((stack, m, k), (stack, k, n)),
        ((stack, m, k), (k, n)), ((m, k), (stack, k, n)),
    ]  # fmt: skip


def _results(a, b):
    """Make arrays that a product may be stored into, or may not."""
    if a.ndim != 2 or b.ndim != 2:
        return [np.empty(3, a.dtype)]
    shape = len(a), b.shape[1]
    if shape[0] * shape[1] > 10**6:
        return []
    fixed = np.empty(shape, a.dtype)
    fixed.flags.writeable = False
    return [np.empty(shape, a.dtype), np.empty(shape, a.dtype, "F"), np.empty(shape), fixed,
            np.empty(shape[::-1], a.dtype), np.empty((1, *shape), a.dtype)]  # fmt: skip


@compiled
@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
def test_it_decides_as_python_does(dtype, told, told_by_python, rng):
    seen, into = set(), set()
    for _ in range(400):
        for left, right in _shapes(rng):
            a, b = _of(left, dtype), _of(right, dtype)
            want = told_by_python(a, b)
            got = told(a, b)
            assert got == want or (got == "python" and (a.ndim, b.ndim) == (2, 3)), (left, right)
            seen.add((a.ndim, b.ndim, want))
            for out in _results(a, b):
                want, got = told_by_python(a, b, out), told(a, b, out)
                assert got == told(a, b, out=out)
                assert got in (want, "python"), (left, right, out.shape)
                into.add((got, want))
    two = set(itertools.product([1, 2], [1, 2], ["matmul", "dot", "python"]))
    stacks = set(itertools.product([(3, 3), (3, 2), (2, 3)], ["matmul", "python"]))
    assert two | {(*axes, side) for axes, side in stacks} <= seen | {(1, 1, "python")}
    assert {("matmul", "matmul"), ("dot", "dot"), ("python", "python")} <= into


@compiled
@pytest.mark.parametrize("dtype", BY_DTYPE, ids=str)
def test_limits_are_met_exactly(dtype, told, told_by_python):
    most, outer = module._MOST[dtype], LIMIT[dtype]
    for count in (most // 8, most // 8 + 1):
        a, b = _of((8, 8), dtype), _of((8, 8 * count // 64), dtype)
        assert told(a, b) == told_by_python(a, b)
    for n in (outer // 2, outer // 2 + 1):
        a, b = _of((2, 1), dtype), _of((1, n), dtype)
        assert told(a, b) == told_by_python(a, b) == ("dot" if 2 * n <= outer else "python")
    for rows, want in ((64, "dot"), (65, "matmul")):
        assert told(_of((rows, 2), dtype), _of((2, 64), dtype)) == want


@compiled
def test_what_is_not_plain_is_pythons(told):
    x = np.ones((4, 4))
    a_matrix = x.view(type("Matrix", (np.ndarray,), {}))
    for pair in ((x, a_matrix), (a_matrix, x), (x, x.tolist()), (x, x.astype("f")), (x, 2.0),
                 (x.astype(">f8"), x.astype(">f8")), (x.astype(int), x.astype(int)),
                 (x.astype("e"), x.astype("e")), (x, np.ones((5, 4))), (x, np.ones(5)),
                 (np.array(1.0), x), (x, np.array(1.0)), (x.astype("g"), x.astype("g")),
                 (x[0], np.ones((2, 4, 4))), (np.ones((2, 4, 4)), x[0]),
                 (np.ones((2, 1, 4, 4)), np.ones((3, 4, 4)))):  # fmt: skip
        assert told(*pair) == "python"
    assert told(x, x) == "dot"
    assert told(x, x, x) == told(x, x, out=x) == "dot"
    assert told(x, x, None) == told(x, x, out=None) == told(x, x, out=(x,)) == told() == "python"
    assert told(x, x, dtype=float) == told(x, x, out=x, dtype=float) == told(x) == "python"
    assert told(x, x, x, x) == told(x, x, x, out=x) == told(x, out=x) == "python"


@compiled
def test_modes_are_pythons(told, monkeypatch):
    x, inside, leave = np.ones((4, 4)), threading.Event(), threading.Event()
    for _ in range(3):
        monkeypatch.setenv("CLGEMM_ROUTE", "device")
        assert told(x, x) == "python"
        monkeypatch.setenv("CLGEMM_OTHER", "1")
        assert told(x, x) == "python"
        monkeypatch.delenv("CLGEMM_ROUTE")
        assert told(x, x) == told(x, x) == "dot"

    def elsewhere():
        with settings.using(route="device"):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert inside.wait(60)
    assert told(x, x) == "dot", "another thread's mode"
    leave.set()
    thread.join()
    with settings.using(fp32="fma"):
        assert told(x, x) == "python"
    assert told(x, x) == "dot"


def _kinds(dtype):
    """Give operands of as many kinds: no decision of one may be another's."""
    a, b = np.ones((300, 200), dtype), np.ones((200, 300), dtype)
    return [
        (a, b), (a[:, ::-1], b), (a[::2], b), (a, b[:, :299]), (a[:299], b), (b.T, b[:, ::-1]),
        (a[:, 1:], b[1:]), (np.asfortranarray(a), b), (a, np.asfortranarray(b)),
        (np.ones((4000, 200), dtype), b[:, 0].copy()), (np.ones((4000, 200), dtype), b[:, 0]),
        (b.T[0].copy(), np.ones((200, 4000), dtype)), *_kinds_of_stacks(dtype),
    ]  # fmt: skip


def _kinds_of_stacks(dtype):
    a, b = np.ones((40, 70, 60), dtype), np.ones((40, 60, 70), dtype)
    return [
        (a, b), (a, b[0]), (a[0], b), (a, b[:1]), (a[:1], b), (a[:, ::-1], b), (a[::-1], b),
        (a, b[..., :69]), (a[:, :69], b), (a[:39], b[:39]),
        (a.swapaxes(0, 1).copy().swapaxes(0, 1), b), (a, np.asfortranarray(b)),
        (a[..., 1:], b[:, 1:]),
    ]  # fmt: skip


@compiled
def test_what_numpy_has_computed_it_computes_again(told):
    pairs = [pair for code in "fdFD" for pair in _kinds(code)]
    for number, pair in enumerate(pairs):
        for other, (a, b) in enumerate(pairs):
            assert told(a, b) == ("matmul" if other < number else "python")
        shortcut.leave_to_numpy(*pair)
    shortcut.HOSTED.clear()
    assert {told(*pair) for pair in pairs} == {"python"}


@compiled
def test_of_stacks_only_fresh_ones_along_one_axis_are_left(told):
    a, b = np.ones((40, 70, 60, 2), "f"), np.ones((40, 60, 70, 2), "f")
    first, second = a[..., 0], b[..., 0]
    shortcut.leave_to_numpy(first, second)
    assert told(first, second) == "matmul"
    assert told(first, second, np.ones((40, 70, 70), "f")) == "python"
    assert told(a, b) == told(a, second) == told(first, b) == "python", "the same first three axes"


@compiled
def test_of_more_kinds_than_there_is_room_for_none_is_another(told):
    kept, others = _of((3000, 500), "f"), _of((3001, 500), "f")
    for n in range(300, 9000):
        shortcut.leave_to_numpy(kept, _of((500, n), "f"))
    found = [told(kept, _of((500, n), "f")) for n in range(300, 9000)]
    assert {*found} == {"matmul", "python"}
    assert 300 <= found.count("matmul") <= 600
    assert {told(others, _of((500, n), "f")) for n in range(300, 9000)} == {"python"}


@compiled
def test_decisions_are_kept_until_others_may_be_made(told, device):
    """Those that Python keeps, not longer; each call is logged where that is wanted."""
    a, b = np.ones((300, 400), "f"), np.ones((400, 500), "f")
    with registry.using(device):
        known = engines.current()
        log = logging.getLogger("clgemm")
        for change in (known.forget, registry.changed, lambda: None):
            assert told(a, b) == "python"
            repeated.remember(a, b, None, None)
            assert told(a, b) == "matmul"
            change()
        log.setLevel(logging.DEBUG)
        try:
            assert told(a, b) == "python"
        finally:
            log.setLevel(logging.NOTSET)
        assert told(a, b) == "matmul"
    assert told(a, b) == "python", "another device is in use"


@compiled
@pytest.mark.usefixtures("device")
def test_what_is_left_is_what_the_kind_decides(told):
    """Not results that lie otherwise, integers, nor what is another loop's."""
    engines.current()
    a, line = np.ones((300, 400), "f"), np.ones((1, 9000), "f")
    tall, deep = np.ones((90, 90, 400), "f"), np.ones((2, 2, 300, 400), "f")
    out = np.ones((300, 300), "f")
    for x, y, into in ((a, a.T.copy(), out), (line.T, line, None),
                       (a, a.T.copy(), np.asfortranarray(out)), (line[0], tall[:, 0].copy(), out),
                       (deep, a.T, None), (a.astype(int), a.T.astype(int), None),
                       (tall, a.T, np.ones((90, 90, 300), "f"))):  # fmt: skip
        repeated.remember(x, y, into, None)
        assert told(x, y) == "python"
    b, turned = a.T.copy(), np.asfortranarray(out)
    assert told(a, b, out) == told(a, b, out=out) == "matmul"
    assert told(a, b, turned) == told(a, b, out=turned) == told(a, b, out[:, :99]) == "python"


@compiled
@pytest.mark.usefixtures("device")
def test_a_matrix_times_its_transpose_is_another_kind(told):
    """Of such a product half may be computed, by either side."""
    engines.current()
    a, b, out = np.ones((300, 400), "f"), np.ones((300, 400), "f"), np.ones((300, 300), "f")
    v, w = np.ones(10**6, "f"), np.ones(10**6, "f")
    p, q = np.ones((2, 50, 70, 60), "f")
    turned = p.swapaxes(1, 2)
    for pair, other in (((a, a.T), (a, b.T)), ((b, a.T), (b, b.T)), ((v, v), (v, w)),
                        ((p, turned), (q, turned)), ((q, turned), (p, turned))):  # fmt: skip
        repeated.remember(*pair, None, None)
        assert told(*pair) == "matmul"
        assert told(*other) == "python"
        registry.changed()
    again = np.frombuffer(memoryview(a).cast("B"), "f").reshape(a.shape)
    repeated.remember(a, again.T, None, None)
    assert told(a, again.T) == told(a, a.T) == "python", "Python sees no Gram product there"
    repeated.remember(a, a.T, out, None)
    assert told(a, a.T, out) == "matmul"
    assert told(a, a.T) == told(a, b.T, out) == "python"


@compiled
def test_mistakes_in_its_use_are_errors(told):
    kinds, x = shortcut.MODULE.Kinds(), np.ones((4, 4))
    with pytest.raises(TypeError, match="does not support vectorcall"):
        shortcut.MODULE.Shortcut.__new__(shortcut.MODULE.Shortcut)(x, x)
    with pytest.raises(RuntimeError, match="has its rules"):
        told.rules_of_matmul()
    with pytest.raises(RuntimeError, match="has its rules"):
        told.rules_of_gemm()
    new = shortcut.MODULE.Shortcut(len)
    for call in (shortcut.MODULE.Shortcut, new.rules_of_matmul, new.rules_of_gemm, kinds.add):
        with pytest.raises(TypeError):
            call()
    rules = module.rules_of_shortcut(None, None)
    with pytest.raises(ValueError, match="limits of 4 types"):
        new.rules_of_matmul(*rules[:-2], (), rules[-1])
    with pytest.raises(TypeError):
        new.rules_of_matmul(rules[0], (1, 2, 3), *rules[2:])
    with pytest.raises(TypeError, match="ndarray is needed"):
        kinds.add(x, [1.0], False, False)
    with pytest.raises(TypeError, match="ndarray is needed"):
        shortcut.MODULE.seen(3)
    for a, b, is_stored in ((x[None], x, True), (x[0], x[None], False), (x[None, None], x, False)):
        with pytest.raises(ValueError, match="axes"):
            kinds.add(a, b, is_stored, False)
    assert new("four") == 4


@compiled
def test_cycles_are_collected_and_buffers_let_go():
    class Function(shortcut.MODULE.Shortcut):
        """One that can be referred to weakly."""

    flag = bytearray(1)
    array, modes, *rules = module.rules_of_shortcut(None, None)
    found = Function(len)
    found.cycle = found
    found.rules_of_matmul(array, (*modes[:-1], flag), *rules)
    with pytest.raises(BufferError):
        flag.append(1)
    gone = weakref.ref(found)
    del found
    gc.collect()
    assert gone() is None
    flag.append(1)


@pytest.fixture(params=BY_DTYPE, ids=str)
def gemm(request):
    """Tell whether SciPy would compute a gemm of a type, or Python's function."""
    found = type("Gemm", (shortcut.MODULE.Shortcut,), {})(lambda *_, **__: "python")
    found.rules_of_gemm(*small.rules_of_shortcut(request.param, lambda *_, **__: "scipy"))
    found.dtype = request.param
    return found


def _told_by_python(gemm, *arguments, **flags):
    """Tell what `small.gemm` does: whether its result is SciPy's."""
    alpha, a, b = arguments
    beta, c, overwrite_c = 0.0, None, 0
    every = alpha, a, b, beta, c, flags.get("trans_a", 0), flags.get("trans_b", 0), overwrite_c
    return "python" if small.gemm(gemm.dtype, every) is None else "scipy"


@compiled
def test_gemms_are_scipys_as_python_has_it(gemm, monkeypatch, rng):
    monkeypatch.setattr(small, "_ROUTINES", dict.fromkeys(BY_DTYPE, lambda *_: np.ones(1)))
    monkeypatch.setattr(repeated, "gemm", lambda _: None)
    seen = set()
    for _ in range(3000):
        m, n, k = _extents(rng, 3)
        trans_a, trans_b = map(int, rng.integers(0, 3, 2))
        a, b = _of((k, m) if trans_a else (m, k), gemm.dtype), _of((k, n), gemm.dtype)
        b = b.T if trans_b else b
        if m * n > 10**8:
            continue
        want = _told_by_python(gemm, 1.5, a, b, trans_a=trans_a, trans_b=trans_b)
        if m * n >= small._ZEROED[gemm.dtype]:
            want = "python"  # it gives SciPy memory for the result
        assert gemm(1.5, a, b, trans_a=trans_a, trans_b=trans_b) == want, (m, n, k)
        seen.add((want, trans_a, trans_b))
        if not (trans_a or trans_b):
            assert gemm(1.5, a, b) == want
    assert seen == set(itertools.product(["python", "scipy"], range(3), range(3)))


@compiled
def test_gemms_that_are_not_plain_are_pythons(gemm, monkeypatch):
    x = np.ones((4, 4), gemm.dtype)
    other = np.ones((4, 4), "f" if gemm.dtype != "f" else "d")
    for alpha in (1.0, -1.0, 1e-37, -1e37):
        assert gemm(alpha, x, x) == "scipy"
    for alpha in (0.0, -0.0, 9e-38, 2e37, np.inf, -np.inf, np.nan, 1, True, 1j, np.float64(1), x):
        assert gemm(alpha, x, x) == "python"
    for call in ((1.0, x), (1.0, x, x, 0.0), (1.0, x, other), (1.0, other, x), (1.0, x, x[0]),
                 (1.0, x[None], x), (1.0, x, x[:3]), (1.0, x[:0], x), (1.0, x[:, :0], x[:0]),
                 (1.0, x.tolist(), x), (1.0, x, x.view(np.recarray)), ()):  # fmt: skip
        assert gemm(*call) == "python"
    for flag in (3, -1, 2**70, True, 1.0, np.int64(1), None, "1"):
        assert gemm(1.0, x, x, trans_a=flag) == gemm(1.0, x, x, trans_b=flag) == "python"
    assert gemm(1.0, x, x, trans_b=2, trans_a=1) == gemm(1.0, x, x, trans_a=0) == "scipy"
    for more in ({"beta": 0.0}, {"c": None}, {"overwrite_c": 0}, {"trans_c": 1}):
        assert gemm(1.0, x, x, **more) == "python"
        assert gemm(1.0, x, x, trans_a=1, **more) == "python"
    assert gemm(1.0, a=x, b=x) == gemm(alpha=1.0, a=x, b=x) == "python"
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    assert gemm(1.0, x, x) == "python"
    monkeypatch.delenv("CLGEMM_ROUTE")
    with settings.using(route="device"):
        assert gemm(1.0, x, x) == "python"
    assert gemm(1.0, x, x) == "scipy"


@compiled
@pytest.mark.parametrize("code", "sdcz")
def test_small_gemms_are_scipys_without_python(code, monkeypatch, rng):
    """From the second one on: SciPy is imported by the first."""
    ours, dtype = getattr(clgemm, f"{code}gemm"), PRECISIONS[code].dtype
    theirs = getattr(scipy.linalg.blas, f"{code}gemm")
    a, b = rng.uniform(-1, 1, (2, 9, 9)).astype(dtype)
    ours(1.0, a, b)
    monkeypatch.setattr(small, "gemm", None)
    for flags in ({}, {"trans_a": 1}, {"trans_b": 2}, {"trans_a": 2, "trans_b": 1}):
        for x, y in itertools.product((a, a[::-1], np.asfortranarray(a)), (b, b.T)):
            got, want = ours(-0.5, x, y, **flags), theirs(-0.5, x, y, **flags)
            np.testing.assert_array_equal(got, want, strict=True)
            assert got.flags.f_contiguous


def test_without_it_python_does_the_same():
    found = run_python(
        "import sys; sys.modules['clgemm.api._shortcut'] = None\n"
        "import numpy as np, clgemm\n"
        "from clgemm.api import shortcut\n"
        "assert shortcut.MODULE is None\n"
        "x = np.arange(12.0).reshape(3, 4)\n"
        "for y in (x.T, x[0], np.ones((2, 4, 3))):\n"
        "    assert (clgemm.matmul(x, y) == np.matmul(x, y)).all()\n"
        "class Case:\n"
        "    matmul = clgemm.matmul\n"
        "assert (Case().matmul(x, x.T) == x @ x.T).all()\n"
        "shortcut.leave_to_numpy(x, x.T)\n"
        "assert (clgemm.dgemm(1.0, x, x, trans_b=1) == x @ x.T).all()\n"
    )
    assert found.returncode == 0, found.stderr


@compiled
def test_arrays_that_lie_otherwise_are_seen(monkeypatch, caplog):
    seen = shortcut.MODULE.seen
    for place in range(5):
        with monkeypatch.context() as patch:
            wrong = {place: None}
            patch.setattr(
                shortcut.MODULE,
                "seen",
                lambda x, wrong=wrong: tuple(wrong.get(i, y) for i, y in enumerate(seen(x))),
            )
            assert shortcut._compiled() is None
        assert "arrays lie otherwise" in caplog.text
        caplog.clear()
    assert shortcut._compiled() is shortcut.MODULE


@compiled
@pytest.mark.parametrize("found", [0, None])
def test_what_was_compiled_of_other_code_is_not_used(found, monkeypatch, caplog):
    if found is None:
        monkeypatch.delattr(shortcut.MODULE, "INTERFACE")
    else:
        monkeypatch.setattr(shortcut.MODULE, "INTERFACE", found)
    assert shortcut._compiled() is None
    assert "install clgemm again" in caplog.text
