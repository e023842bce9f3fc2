// The micro-kernel of cpu_packed: MR x NR elements of C in registers, vectors along M, elements of B
// broadcast one by one:
//
//          C        +=      A        *       B
//      NR columns        one row        one row of NR,
//      of MV vectors     of MV vectors  one broadcast each
//
// Complex rows of A are a run of real and a run of imaginary parts, so the arithmetic sees real
// vectors.  At the edges of C narrower kernels run, of mv < MV vectors and nv < NR columns; both are
// constants wherever this is inlined.

#ifndef VW
#define VW 16  // vector width: reals in a SIMD register
#endif
#ifndef MR
#define MR 32  // rows of the micro-tile, a multiple of VW
#endif
#ifndef NR
#define NR 12  // columns of the micro-tile
#endif
#ifndef PREFETCH_C
#define PREFETCH_C 1  // 1: fetch the micro-tile of C while the k loop runs (needs clang's builtin)
#endif

#ifndef PACK_A
#define PACK_A 1  // 0: A is real, and whole panels of it are read where they lie
#endif
#ifndef PACK_B
#define PACK_B 1  // 0: B is real and read where it lies
#endif

#define MV (MR / VW)
#define AV (MV * CE)  // vectors in a row of a panel of A
typedef CAT(REAL, VW) REALV;
#define VLOAD(p) CAT(vload, VW)(0, p)
#if PACK_A
#define ALOAD(p) (*(__global const REALV *)(p))
#else
#define ALOAD(p) VLOAD(p)
#endif
#define VSTORE(x, p) CAT(vstore, VW)(x, 0, p)

// Interleaves real and imaginary vectors into the lower and upper half of VW elements.
#define ZIP(lo, hi, re, im) \
    REALV lo, hi;           \
    lo.even = re.lo;        \
    lo.odd = im.lo;         \
    hi.even = re.hi;        \
    hi.odd = im.hi

#define NARROW_M (MV > 1 ? MV - 1 : 1)  // vectors of the kernels for the lower edge
#define NARROW_N (NR / 2)               // columns of the kernels for the right edge

#if IS_COMPLEX
#define RANK_1_IMAGINARY(mv, j)                                          \
    const REALV bi = (REALV)(b[j][e + 1]);                               \
    UNROLL                                                               \
    for (int v = 0; v < (mv); v++) {                                     \
        acc[j][v] = fma(-av[MV + v], bi, acc[j][v]);                     \
        acc[j][MV + v] = fma(av[v], bi, acc[j][MV + v]);                 \
    }
#else
#define RANK_1_IMAGINARY(mv, j)
#endif

// acc += one row of a panel of A, mv vectors of it, times one row of B, nv elements: column j of B
// lies at b[j], the row at e.  Then on to the next row, step_a reals further in A.
#define RANK_1(mv, nv)                                                   \
    {                                                                    \
        REALV av[AV];                                                    \
        UNROLL                                                           \
        for (int v = 0; v < (mv); v++) {                                 \
            av[v] = ALOAD(a + v * VW);                                   \
            if (IS_COMPLEX)                                              \
                av[MV * (CE - 1) + v] =                                  \
                    ALOAD(a + MR * (CE - 1) + v * VW);                   \
        }                                                                \
        UNROLL                                                           \
        for (int j = 0; j < (nv); j++) {                                 \
            const REALV br = (REALV)(b[j][e]);                           \
            UNROLL                                                       \
            for (int v = 0; v < (mv); v++) {                             \
                acc[j][v] = fma(av[v], br, acc[j][v]);                   \
                if (IS_COMPLEX)                                          \
                    acc[j][MV * (CE - 1) + v] =                          \
                        fma(av[MV * (CE - 1) + v], br, acc[j][MV * (CE - 1) + v]); \
            }                                                            \
            RANK_1_IMAGINARY(mv, j)                                      \
        }                                                                \
        a += step_a;                                                     \
        e += step_b;                                                     \
    }

// Defines a function: acc += panel of A (depth x mv vectors, step_a reals from row to row) * B
// (depth x nv, step_b).  A macro and not an argument, since PoCL unrolls loops before it inlines
// functions.  The loop over k is not unrolled: Intel's compiler would fetch later rows' elements of B
// early, and spill vectors for them.
#define DEFINE_UPDATE(name, mv, nv)                                                             \
    INLINE void name(int depth, __global const REAL *a, long step_a,                            \
                     __global const REAL *const *b, long step_b, REALV acc[NR][AV])             \
    {                                                                                           \
        long e = 0;                                                                             \
        for (int p = 0; p < depth; p++)                                                         \
            RANK_1(mv, nv)                                                                      \
    }
DEFINE_UPDATE(update, MV, NR)
DEFINE_UPDATE(update_low, NARROW_M, NR)
DEFINE_UPDATE(update_lowest, 1, NR)
DEFINE_UPDATE(update_right, MV, NARROW_N)
DEFINE_UPDATE(update_right_low, NARROW_M, NARROW_N)
DEFINE_UPDATE(update_right_lowest, 1, NARROW_N)

// Column j of the accumulators to VW * MV elements at c, scaled by alpha.
INLINE void store_column(const REALV *acc, __global REAL *c, ELEM alpha, ELEM beta, int beta_is)
{
    UNROLL
    for (int v = 0; v < MV; v++) {
        __global REAL *d = c + v * VW * CE;
#if IS_COMPLEX
        const REALV re = alpha.x * acc[v] - alpha.y * acc[MV + v];
        const REALV im = alpha.x * acc[MV + v] + alpha.y * acc[v];
        ZIP(lo, hi, re, im);
        if (beta_is != BETA_ZERO) {
            const REALV c0 = VLOAD(d), c1 = VLOAD(d + VW);
            if (beta_is == BETA_ONE) {
                lo += c0;
                hi += c1;
            } else {
                REALV s0, s1;  // i * c
                s0.even = -c0.odd;
                s0.odd = c0.even;
                s1.even = -c1.odd;
                s1.odd = c1.even;
                lo += beta.x * c0 + beta.y * s0;
                hi += beta.x * c1 + beta.y * s1;
            }
        }
        VSTORE(lo, d);
        VSTORE(hi, d + VW);
#else
        REALV x = alpha * acc[v];
        if (beta_is == BETA_ONE)
            x += VLOAD(d);
        else if (beta_is == BETA_ANY)
            x += beta * VLOAD(d);
        VSTORE(x, d);
#endif
    }
}

// The same for a micro-tile that hangs over the edge of C: by way of a private copy.
INLINE void store_edge(REALV acc[NR][AV], __global ELEM *c, long ldc, int mr, int nr, ELEM alpha,
                       ELEM beta, int beta_is)
{
    REAL tile[NR * AV * VW];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int v = 0; v < AV; v++)
            VSTORE(acc[j][v], tile + (j * AV + v) * VW);
    for (int j = 0; j < nr; j++)
        for (int i = 0; i < mr; i++) {
            const REAL *t = tile + j * AV * VW + i;
#if IS_COMPLEX
            const ELEM x = (ELEM)(t[0], t[MR]);
#else
            const ELEM x = t[0];
#endif
            elem_store(c + i + j * ldc, elem_mul(alpha, x), beta, beta_is);
        }
}

// C (mr x nr) := alpha * A * B + beta * C for a panel of A and columns of B that lie column_b reals
// apart, with the narrowest kernel that covers it.
INLINE void micro_kernel(int depth, __global const REAL *a, long step_a,
                         __global const REAL *b, long step_b, long column_b, __global ELEM *c,
                         long ldc, int mr, int nr, ELEM alpha, ELEM beta, int beta_is)
{
#if PREFETCH_C
    for (int j = 0; j < nr; j++)
        UNROLL
        for (int i = 0; i < MR * CE * (int)sizeof(REAL); i += 64)
            __builtin_prefetch((const void *)((ulong)(c + j * ldc) + i), 1, 3);
#endif
    REALV acc[NR][AV];
    __global const REAL *columns[NR];
    UNROLL
    for (int j = 0; j < NR; j++) {
        UNROLL
        for (int v = 0; v < AV; v++)
            acc[j][v] = (REALV)(0);
        // Columns beyond the edge repeat the last one.
        columns[j] = b + (PACK_B ? j : min(j, nr - 1)) * column_b;
    }
    const int lowest = MV > 2 && mr <= VW, low = MV > 1 && mr <= NARROW_M * VW;
    if (nr > NARROW_N) {
        if (lowest)
            update_lowest(depth, a, step_a, columns, step_b, acc);
        else if (low)
            update_low(depth, a, step_a, columns, step_b, acc);
        else
            update(depth, a, step_a, columns, step_b, acc);
    } else {
        if (lowest)
            update_right_lowest(depth, a, step_a, columns, step_b, acc);
        else if (low)
            update_right_low(depth, a, step_a, columns, step_b, acc);
        else
            update_right(depth, a, step_a, columns, step_b, acc);
    }
    if (mr == MR && nr == NR) {
        UNROLL
        for (int j = 0; j < NR; j++)
            store_column(acc[j], (__global REAL *)(c + j * ldc), alpha, beta, beta_is);
    } else {
        store_edge(acc, c, ldc, mr, nr, alpha, beta, beta_is);
    }
}
