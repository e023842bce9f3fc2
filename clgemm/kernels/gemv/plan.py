"""How `gemv` lays out one problem: which kernel, work-groups, parts of k, scratch memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    TICKETS,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    has_tickets,
    precision_defines,
    precision_of,
    round_up,
)
from clgemm.kernels.mirror import mirror
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

KERNEL_FILES: dict[str, tuple[str, ...]] = {
    name: ("gemv/vectors.cl", f"gemv/{name.removeprefix('gemv_')}.cl")
    for name in ("gemv_dot", "gemv_axpy", "gemv_sum", "gemv_ger")
}
TICKET_FILE = "nv_ticket.cl"
FEW_ROWS = 4  # that are dot products even if columns are contiguous
LEAST_COLUMNS = 4  # of an outer product, that a work-item writes
TURNS = 2  # times that a work-item reads as much as it can at once, where rows are long enough
MOST_SUMS = 64  # bytes of the sums of a work-item's rows
MOST_ITEMS = 1024  # of a work-group that has the columns of its rows to itself
ENOUGH = 0.7  # of the work-items that keep a device busy: better than a second launch
SOLE_BYTES = 64 << 10  # that a work-group has read by the time that a second launch takes


class _Operand(NamedTuple):
    """The matrix of a product with a vector, or the vector."""

    along_k: bool
    """Whether elements along k are neighbours."""
    ld: int
    stride: int
    offset: int

    def is_aligned(self, width: int) -> bool:
        """Tell whether each row or column starts on a multiple of `width` elements."""
        return not any(x % width for x in (self.ld, self.stride, self.offset))


@dataclass(frozen=True)
class Cut:
    """One problem, cut for one device."""

    traits: DeviceTraits
    g: Gemm
    config: Config

    def plan(self) -> Plan:
        """Lay out the launches; all of a Gram product's C is computed, and then made symmetric."""
        product = self._product()
        return product._replace(steps=(*product.steps, *mirror(self.traits, self.g)))

    def _product(self) -> Plan:
        if self.g.k == 1:
            return Plan((self._ger(),))
        dots = self._w.along_k or self._rows <= FEW_ROWS
        return self._dot() if dots else self._axpy()

    @property
    def _rows_of_c(self) -> bool:
        return self.g.m < self.g.n

    @property
    def _rows(self) -> int:
        """Rows of the matrix that is multiplied with vectors."""
        return max(self.g.m, self.g.n)

    @property
    def _columns(self) -> int:
        """Vectors that it is multiplied with."""
        return min(self.g.m, self.g.n)

    @property
    def _w(self) -> _Operand:
        return self._b if self._rows_of_c else self._a

    @property
    def _x(self) -> _Operand:
        return self._a if self._rows_of_c else self._b

    @property
    def _a(self) -> _Operand:
        g = self.g
        return _Operand(g.trans_a, g.lda, g.stride_a, g.offset_a)

    @property
    def _b(self) -> _Operand:
        g = self.g
        return _Operand(not g.trans_b, g.ldb, g.stride_b, g.offset_b)

    @property
    def _longest(self) -> int:
        """Elements of the longest vector."""
        return max(1, ALIGNMENT // precision_of(self.g).itemsize)

    def _width(self, *, divides_rows: bool) -> int:
        """Give the elements of the vectors that the matrix can be read in."""
        width = self._longest if self.g.aligned else 1
        while width > 1 and not (
            self._w.is_aligned(width) and not (divides_rows and self._rows % width)
        ):
            width //= 2
        return width

    def _parts(self, groups: int, least: int) -> int:
        """Count the parts of k, of `least` elements at least, that keep the device busy.

        One, where each work-group reads so little of the matrix that a second launch takes longer.
        """
        if self._rows * self.g.k * precision_of(self.g).itemsize <= SOLE_BYTES * groups:
            return 1
        return max(1, min(self._busy // groups, self.g.k // least))

    @property
    def _busy(self) -> int:
        """Work-groups that keep the device busy, those of other columns and entries among them."""
        return max(1, self.config["GROUPS"] * self.traits.compute_units // self._products)

    @property
    def _products(self) -> int:
        return self._columns * self.g.batch

    def _dot(self) -> Plan:
        along_k = self._w.along_k
        width = self._width(divides_rows=False) if along_k else 1
        rows, lanes, depth = self._shared_rows(width)
        wide_x = self._x.along_k and self._x.is_aligned(width)
        defines = {
            "LANES": lanes, "ROWS": rows, "DEPTH": depth, "ALONG_K": int(along_k),
            "WIDE_X": int(wide_x),
        }  # fmt: skip
        items, groups = self.config["ITEMS"], self._groups_of_rows(rows, lanes)
        parts = self._parts(groups, items * depth * width)
        return self._summed("gemv_dot", width, defines, groups, parts)

    def _groups_of_rows(self, rows: int, lanes: int) -> int:
        return -(-self._rows // (self.config["ITEMS"] // lanes * rows))

    def _shared_rows(self, width: int) -> tuple[int, int, int]:
        """Choose the rows of work-items, how many share them, and the vectors read at once.

        Work-items that share rows are as few as read TURNS times, but `NARROW`, so that what they
        read is contiguous, or more where that would leave the device idle.  Few rows whose columns
        are contiguous stay together.
        """
        p, vectors = self.config, max(1, self.g.k // width)
        if not self._w.along_k:
            rows = _power_of_two(self._rows)
            return rows, p["ITEMS"], p["READS"] // rows
        rows = min(p["ROWS"], _power_of_two(self._rows))
        most = min(p["ITEMS"], _power_of_two(vectors + 1) // 2)
        wanted = _power_of_two(vectors // (p["READS"] // rows * TURNS) + 1) // 2
        lanes = min(most, max(wanted, p["NARROW"]))
        while self._groups_of_rows(rows, lanes) < self._busy and (lanes < most or rows > 1):
            lanes, rows = (lanes * 2, rows) if lanes < most else (lanes, rows // 2)
        depth = min(p["READS"] // rows, _power_of_two(-(-vectors // lanes)))
        while (
            2 * rows * depth <= p["READS"]
            and 2 * rows * precision_of(self.g).itemsize <= MOST_SUMS
            and self._groups_of_rows(2 * rows, lanes) >= self._busy
        ):
            rows *= 2
        return rows, lanes, depth

    def _axpy(self) -> Plan:
        width = self._width(divides_rows=True)
        whole = self._whole_columns(width)
        lanes, items = whole or (self._lanes(width), self.config["ITEMS"])
        groups, slices = -(-self._rows // (lanes * width)), items // lanes
        # Large groups have fewer registers for a work-item, and complex types need more of them.
        crowded = items != self.config["ITEMS"] or precision_of(self.g).is_complex
        reads = self.config["READS"] // (2 if crowded else 1)
        depth = min(reads, _power_of_two(-(-self.g.k // slices)))
        parts = 1 if whole else self._parts(groups, slices * depth)
        defines = {"ITEMS": items, "LANES": lanes, "DEPTH": depth}
        return self._summed("gemv_axpy", width, defines, groups, parts)

    def _lanes(self, width: int) -> int:
        return min(self.config["LANES"], _power_of_two(-(-self._rows // width)))

    def _whole_columns(self, width: int) -> tuple[int, int] | None:
        """Choose work-items along a column and of a group, if one launch keeps the device busy.

        Groups have fewer rows, then more work-items, as far as k gives each some columns.
        """
        p, lanes, items = self.config, self._lanes(width), self.config["ITEMS"]
        itemsize = precision_of(self.g).itemsize
        most = min(self.traits.max_work_group_size, MOST_ITEMS, lanes * self.g.k // LEAST_COLUMNS)
        most = min(most, self.traits.local_memory // (width * itemsize))
        while -(-self._rows // (lanes * width)) * items < ENOUGH * self._busy * p["ITEMS"]:
            if lanes > p["NARROW"]:
                lanes //= 2
            elif 2 * items <= most:
                items *= 2
            else:
                each = lanes * width * self.g.k * itemsize
                return (lanes, items) if each * p["ITEMS"] <= SOLE_BYTES * items else None
        return lanes, items

    def _summed(
        self, name: str, width: int, defines: dict[str, int], groups: int, parts: int
    ) -> Plan:
        """Launch a kernel for parts of k, and what adds them if its last work-groups cannot."""
        g, items = self.g, defines.get("ITEMS", self.config["ITEMS"])
        extent = round_up(-(-g.k // parts), self._longest)
        parts = -(-g.k // extent)
        size = (groups * items, self._columns, g.batch * parts)
        joined = parts > 1 and has_tickets(self.traits) and groups * self._products <= TICKETS
        more: tuple[int | str, ...] = ()
        if parts > 1:
            more = (extent, "scratch", "tickets") if joined else (extent, "scratch")
        defines |= {"SPLIT": int(parts > 1) + joined}
        spec = self._spec(name, "lpp"[: len(more)], defines, width)
        if joined:
            spec = spec._replace(files=(TICKET_FILE, *spec.files))
        steps = [Step(spec, size, (items, 1, 1), (*gemm_args(g), *more))]
        if parts > 1 and not joined:
            steps.append(self._sum(parts))
        scratch = parts * self._products * self._rows if parts > 1 else 0
        return Plan(tuple(steps), scratch * precision_of(g).itemsize, takes_tickets=joined)

    def _sum(self, parts: int) -> Step:
        g, items = self.g, self.config["ITEMS"]
        lanes = min(self.config["LANES"], _power_of_two(self._rows))
        spec = self._spec("gemv_sum", "pi", {"LANES": lanes}, 1)
        size = (-(-self._rows // lanes) * items, self._columns, g.batch)
        return Step(spec, size, (items, 1, 1), (*gemm_args(g), "scratch", parts))

    def _ger(self) -> Step:
        g, items, width = self.g, self.config["ITEMS"], self._longest
        # Else a work-item stores one element at a time, apart from those of its neighbours.
        while width > 1 and not _Operand(False, g.ldc, g.stride_c, g.offset_c).is_aligned(width):
            width //= 2
        lanes = min(self.config["LANES"], _power_of_two(-(-g.m // width)))
        across, depth = -(-g.m // (lanes * width)), self.config["READS"]
        busy = self.config["GROUPS"] * self.traits.compute_units // (across * g.batch)
        while depth > LEAST_COLUMNS and g.n < busy * items // lanes * depth:
            depth //= 2
        spec = self._spec("gemv_ger", "", {"LANES": lanes, "DEPTH": depth}, width)
        size = (across * items, -(-g.n // (items // lanes * depth)), g.batch)
        return Step(spec, size, (items, 1, 1), gemm_args(g))

    def _spec(self, name: str, more: str, defines: dict[str, int], width: int) -> KernelSpec:
        defines = precision_defines(precision_of(self.g)) | {
            "ITEMS": self.config["ITEMS"],
            "ROWS_OF_C": int(self._rows_of_c),
            "VW": width,
        } | defines  # fmt: skip
        signature = GEMM_SIGNATURE + more
        return KernelSpec(KERNEL_FILES[name], name, tuple(sorted(defines.items())), signature)


def _power_of_two(count: int) -> int:
    """Give the least power of two that is not below a count."""
    return 1 << max(0, count - 1).bit_length()
