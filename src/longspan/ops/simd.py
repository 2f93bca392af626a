"""SIMD vectors for compiled loops: `load`, `store`, `spread`, `total`, `exp`, and +, - and * between vectors.

Numba leaves vectors to LLVM, which finds them in simple loops over arrays and in little else. These are LLVM's own
vectors: sums over rows of a matrix stay in registers, whatever surrounds them. LLVM splits them into as many registers
as the processor needs, so that the same code serves SSE, AVX2, AVX-512 and NEON.

Unlike those of NumPy, indices are not checked, and none counts from the end.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.typing import signature as nb_signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin

# Of a vector: a register of AVX-512, two of AVX2. Two sums that do not wait for each other keep a processor busy.
BYTES = 64
# As `compiled` has them.
FLAGS = ("reassoc", "contract", "nsz")


class Vector(types.Type):
    """The type of BYTES / itemsize floats of `dtype`."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        super().__init__(name=f"Vector({dtype})")

    @property
    def count(self) -> int:
        return BYTES * 8 // int(self.dtype.bitwidth)


@register_default(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(manager.lookup(kind.dtype).get_value_type(), kind.count))


def _pointer(context: Any, builder: ir.IRBuilder, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    vector = context.get_value_type(Vector(kind.dtype))
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


@intrinsic
def lanes(_: Any, array: Any) -> Any:
    """Number of an array's values in a vector, known at compile time: loops with such a step are fast."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        return context.get_constant(types.intp, Vector(array.dtype).count)

    return types.intp(array), generate


@intrinsic
def load(_: Any, array: Any, index: types.Integer) -> Any:
    """Return the vector that begins at `index` of a contiguous array (n,)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        found = builder.load(_pointer(context, builder, kind, *given))
        found.align = kind.dtype.bitwidth // 8
        return found

    return Vector(array.dtype)(array, types.intp), generate


@intrinsic
def store(_: Any, array: Any, index: types.Integer, vector: Vector) -> Any:
    """Write a vector to a contiguous array (n,), beginning at `index`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        builder.store(given[2], _pointer(context, builder, kind, *given[:2]), align=kind.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic
def put(_: Any, array: Any, index: types.Integer, number: types.Float) -> Any:
    """Write one number to a contiguous array (n,) at `index`, which is not negative."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        builder.store(given[2], builder.gep(data, [given[1]]))
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), generate


@intrinsic
def spread_from(_: Any, array: Any, index: types.Integer) -> Any:
    """Return the vector that holds the number at `index` of a contiguous array (n,) everywhere."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        return _spread(context, builder, signature, builder.load(builder.gep(data, [given[1]])))

    return Vector(array.dtype)(array, types.intp), generate


@intrinsic
def spread(_: Any, number: types.Float) -> Any:
    """Return the vector that holds one number everywhere."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        return _spread(context, builder, signature, given[0])

    return Vector(number)(number), generate


def _spread(context: Any, builder: ir.IRBuilder, signature: Any, number: Any) -> Any:
    kind = context.get_value_type(signature.return_type)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, cgutils.int32_t(0))
    mask = ir.Constant(ir.VectorType(cgutils.int32_t, kind.count), [0] * kind.count)
    return builder.shuffle_vector(first, first, mask)


@intrinsic
def total(_: Any, vector: Vector) -> Any:
    """Return the sum of a vector's numbers."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        (left,), count = given, signature.args[0].count
        while count > 1:
            count //= 2
            halves = (
                builder.shuffle_vector(
                    left, left, ir.Constant(ir.VectorType(cgutils.int32_t, count), list(range(first, first + count)))
                )
                for first in (0, count)
            )
            left = builder.fadd(*halves, flags=FLAGS)
        return builder.extract_element(left, cgutils.int32_t(0))

    return vector.dtype(vector), generate


@intrinsic
def minimum(_: Any, one: Vector, other: Vector) -> Any:
    """Return the smaller numbers of two vectors; NaN of the first stays."""
    return one(one, other), _choose_other("<")


@intrinsic
def maximum(_: Any, one: Vector, other: Vector) -> Any:
    """Return the larger numbers of two vectors; NaN of the first stays."""
    return one(one, other), _choose_other(">")


def _choose_other(where: str) -> Callable[..., Any]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        one, other = given
        return builder.select(builder.fcmp_ordered(where, other, one), other, one)

    return generate


@intrinsic
def exp(_: Any, vector: Vector) -> Any:
    """Return e to the power of a vector's numbers, which are at most 88 (float64: 709).

    Below -87 (float64: -708) it is exp(-87), as smaller results would not be normal numbers. Errors are at most two
    units in the last place. With x = n ln 2 + r, n whole, exp(x) is 2ⁿ times a polynomial of r.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        single = vector.dtype.bitwidth == 32
        kind = context.get_value_type(vector)
        bits = ir.VectorType(ir.IntType(vector.dtype.bitwidth), vector.count)
        # Of the fraction of a number; the exponent of 1; the lowest power; ln 2 in two parts, the first of few digits.
        fraction, bias, lowest, high, low, degree = (
            (23, 127, -87.0, 0.693359375, -2.12194440e-4, 7)
            if single
            else (52, 1023, -708.0, 0.693145751953125, 1.42860682030941723212e-6, 13)
        )
        # Calls, as Numba lets LLVM reorder sums and products.
        name = f"v{vector.count}f{vector.dtype.bitwidth}"
        fma, rint = (
            cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * count), f"llvm.{call}.{name}")
            for call, count in (("fma", 3), ("rint", 1))
        )

        def number(value: float) -> ir.Constant:
            return ir.Constant(kind, [value] * vector.count)

        def whole(value: int) -> ir.Constant:
            return ir.Constant(bits, [value] * vector.count)

        x = _choose_other(">")(context, builder, signature, (given[0], number(lowest)))
        n = builder.call(rint, [builder.fmul(x, number(math.log2(math.e)))])
        r = builder.call(fma, [n, number(-high), x])
        r = builder.call(fma, [n, number(-low), r])
        found = number(1 / math.factorial(degree))
        for power in reversed(range(degree)):
            found = builder.call(fma, [found, r, number(1 / math.factorial(power))])
        # n is the last bits of this sum, and becomes an exponent.
        shifted = builder.bitcast(builder.fadd(n, number(1.5 * 2.0**fraction)), bits)
        exponent = builder.shl(shifted, whole(fraction))
        scale = builder.bitcast(builder.add(exponent, whole(bias << fraction)), kind)
        return builder.fmul(found, scale)

    return vector(vector), generate


def _define(of: Callable[[Any, Any], Any], instruction: str) -> None:
    """Have an operator between two vectors be an instruction of LLVM."""

    @infer_global(of)
    class Template(AbstractTemplate):
        def generic(self, given: tuple[types.Type, ...], _: Any) -> Any:
            one, other = given
            return nb_signature(one, one, one) if isinstance(one, Vector) and one == other else None

    @lower_builtin(of, Vector, Vector)
    def _(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        return getattr(builder, instruction)(*given, flags=FLAGS)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")
