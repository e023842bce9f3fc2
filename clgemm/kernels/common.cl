// What every kernel of clgemm starts from: the four precisions as one set of names.
//
// A define header written by source.py goes before this text.  The defaults below make each .cl file
// legal OpenCL C on its own.

#ifndef IS_DOUBLE
#define IS_DOUBLE 0  // 1: the real type is double
#endif
#ifndef IS_COMPLEX
#define IS_COMPLEX 0  // 1: an element is a (re, im) pair
#endif

#if IS_DOUBLE
#if __OPENCL_C_VERSION__ < 120
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define REAL double
#else
#define REAL float
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#if IS_COMPLEX
#define CE 2  // reals in an element
#define ONE 1, 0
typedef CAT(REAL, 2) ELEM;
#else
#define CE 1
#define ONE 1
typedef REAL ELEM;
#endif

// The type of `w` elements as one vector of reals, if there is one so long.
#if IS_COMPLEX
#define REALS_1 2
#define REALS_2 4
#define REALS_4 8
#define REALS_8 16
#else
#define REALS_1
#define REALS_2 2
#define REALS_4 4
#define REALS_8 8
#endif
#define VECTOR(w) CAT(REAL, CAT(REALS_, w))

#ifndef CLANG_BUILTINS
#define CLANG_BUILTINS 0  // 1: the compiler is clang and lowers its builtins
#endif

// One problem in column-major terms, as family.py packs it.  Element (row, column) of op(X) lies at
// row + column * ldx if trans_x is 0, else at column + row * ldx, after offset_x elements; entries of
// a stack are stride_x apart.  C of a SYMMETRIC or HERMITIAN product, where op(B) is op(A) transposed
// or conjugated as well, is computed on and below its diagonal and mirrored.
#define SYMMETRIC 1
#define HERMITIAN 2
typedef struct {
    long m, n, k, batch;
    long offset_a, lda, stride_a;
    long offset_b, ldb, stride_b;
    long offset_c, ldc, stride_c;
    int trans_a, conj_a, trans_b;
    short conj_b, triangle;  // no ints: large structs may cost speed, see nv_split/split.cl
} Gemm;

// What every gemm kernel takes first.  a and b may be the same matrix.
#define GEMM_ARGS                                                                              \
    const Gemm g, const ELEM alpha, const ELEM beta, __global const ELEM *restrict a,          \
        __global const ELEM *restrict b, __global ELEM *restrict c

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")

// x * y, as BLAS does it: no recovery of infinities (C99 Annex G), a NaN part stays a NaN.
INLINE ELEM elem_mul(ELEM x, ELEM y)
{
#if IS_COMPLEX
    return (ELEM)(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
#else
    return x * y;
#endif
}

// acc + x * y, one rounding a product.
INLINE ELEM elem_fma(ELEM x, ELEM y, ELEM acc)
{
#if IS_COMPLEX
    acc.x = fma(-x.y, y.y, fma(x.x, y.x, acc.x));
    acc.y = fma(x.y, y.x, fma(x.x, y.y, acc.y));
    return acc;
#else
    return fma(x, y, acc);
#endif
}

// The conjugate if `conj`; a real is its own.
INLINE ELEM elem_conj(ELEM x, int conj)
{
#if IS_COMPLEX
    return conj ? (ELEM)(x.x, -x.y) : x;
#else
    return x;
#endif
}

// An element on the diagonal of a Hermitian C: real, unless its imaginary part is not finite.
INLINE ELEM elem_on_diagonal(ELEM x, int triangle)
{
#if IS_COMPLEX
    return triangle == HERMITIAN ? (ELEM)(x.x, x.y - x.y) : x;
#else
    return x;
#endif
}

INLINE int elem_is(ELEM x, REAL re)
{
#if IS_COMPLEX
    return x.x == re && x.y == 0;
#else
    return x == re;
#endif
}

// How a result meets C.  beta == 0: C is not read, so that NaN or garbage in it cannot show.
// beta == 1: no product, so that an infinite part of C does not become a NaN.
#define BETA_ZERO 0
#define BETA_ONE 1
#define BETA_ANY 2
INLINE int beta_class(ELEM beta)
{
    return elem_is(beta, 0) ? BETA_ZERO : elem_is(beta, 1) ? BETA_ONE : BETA_ANY;
}

INLINE void elem_store(__global ELEM *c, ELEM ab, ELEM beta, int beta_is)
{
    if (beta_is == BETA_ONE)
        ab += *c;
    else if (beta_is == BETA_ANY)
        ab += elem_mul(beta, *c);
    *c = ab;
}
