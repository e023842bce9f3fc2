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

#ifndef PACK_B
#define PACK_B 1  // 0: B is real, not transposed, and read where it lies
#endif

#define MV (MR / VW)
#define AV (MV * CE)  // vectors in a row of a panel of A
typedef CAT(REAL, VW) REALV;
#define VLOAD(p) CAT(vload, VW)(0, p)
#define VSTORE(x, p) CAT(vstore, VW)(x, 0, p)

// Interleaves real and imaginary vectors into the lower and upper half of VW elements.
#define ZIP(lo, hi, re, im) \
    REALV lo, hi;           \
    lo.even = re.lo;        \
    lo.odd = im.lo;         \
    hi.even = re.hi;        \
    hi.odd = im.hi

// acc += one row of a panel of A times one row of B: column j of B at b[j], the row at e.
INLINE void rank_1(int mv, int nv, __global const REAL *a, __global const REAL *const *b, long e,
                   REALV acc[NR][AV])
{
    REALV re[MV], im[MV];
    UNROLL
    for (int v = 0; v < mv; v++) {
        re[v] = *(__global const REALV *)(a + v * VW);
        if (IS_COMPLEX)
            im[v] = *(__global const REALV *)(a + MR + v * VW);
    }
    UNROLL
    for (int j = 0; j < nv; j++) {
        const REALV br = (REALV)(b[j][e]);
        UNROLL
        for (int v = 0; v < mv; v++) {
            acc[j][v] = fma(re[v], br, acc[j][v]);
            if (IS_COMPLEX)
                acc[j][MV + v] = fma(im[v], br, acc[j][MV + v]);
        }
#if IS_COMPLEX
        const REALV bi = (REALV)(b[j][e + 1]);
        UNROLL
        for (int v = 0; v < mv; v++) {
            acc[j][v] = fma(-im[v], bi, acc[j][v]);
            acc[j][MV + v] = fma(re[v], bi, acc[j][MV + v]);
        }
#endif
    }
}

// acc += panel of A (depth x MR) * B (depth x NR, step_b reals from row to row).
INLINE void rank_update(int mv, int nv, int depth, __global const REAL *a,
                        __global const REAL *const *b, long step_b, REALV acc[NR][AV])
{
    int p = 0;
    long e = 0;
    if (mv == MV && nv == NR)  // narrow kernels are not unrolled: compilers take long enough
        for (; p + KU <= depth; p += KU) {
            UNROLL
            for (int u = 0; u < KU; u++) {
                rank_1(mv, nv, a, b, e, acc);
                a += MR * CE;
                e += step_b;
            }
        }
    for (; p < depth; p++) {
        rank_1(mv, nv, a, b, e, acc);
        a += MR * CE;
        e += step_b;
    }
}

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

// Writes a micro-tile that hangs over the edge of C, or a narrow one, from a private copy.
INLINE void store_edge(const REAL *tile, __global ELEM *c, long ldc, int mr, int nr, ELEM alpha,
                       ELEM beta, int beta_is)
{
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

// A * B for a panel of A and columns of B that lie column_b reals apart, in registers for mv vectors
// and nv columns.  A whole micro-tile goes to C at once, any other one to `tile`.
INLINE void micro_tile(int mv, int nv, int depth, __global const REAL *a, __global const REAL *b,
                       long step_b, long column_b, __global ELEM *c, long ldc, int whole, int nr,
                       ELEM alpha, ELEM beta, int beta_is, REAL *tile)
{
    REALV acc[NR][AV];
    __global const REAL *columns[NR];
    UNROLL
    for (int j = 0; j < nv; j++) {
        UNROLL
        for (int v = 0; v < mv; v++) {
            acc[j][v] = (REALV)(0);
            if (IS_COMPLEX)
                acc[j][MV + v] = (REALV)(0);
        }
        // Columns beyond the edge repeat the last one.
        columns[j] = b + (PACK_B ? j : min(j, nr - 1)) * column_b;
    }
    rank_update(mv, nv, depth, a, columns, step_b, acc);
    if (mv == MV && nv == NR && whole) {
        UNROLL
        for (int j = 0; j < NR; j++)
            store_column(acc[j], (__global REAL *)(c + j * ldc), alpha, beta, beta_is);
        return;
    }
    UNROLL
    for (int j = 0; j < nv; j++)
        UNROLL
        for (int v = 0; v < mv; v++) {
            VSTORE(acc[j][v], tile + (j * AV + v) * VW);
            if (IS_COMPLEX)
                VSTORE(acc[j][MV + v], tile + (j * AV + MV + v) * VW);
        }
}

#define NARROW_M (MV > 1 ? MV - 1 : 1)  // vectors of the kernel for the lower edge
#define NARROW_N (NR / 2)               // columns of the kernel for the right edge

// C (mr x nr) := alpha * A * B + beta * C with the narrowest kernel that covers it.
INLINE void micro_kernel(int depth, __global const REAL *a, __global const REAL *b, long step_b,
                         long column_b, __global ELEM *c, long ldc, int mr, int nr, ELEM alpha,
                         ELEM beta, int beta_is)
{
#if PREFETCH_C
    for (int j = 0; j < nr; j++)
        UNROLL
        for (int i = 0; i < MR * CE * (int)sizeof(REAL); i += 64)
            __builtin_prefetch((const void *)((ulong)(c + j * ldc) + i), 1, 3);
#endif
    REAL tile[NR * AV * VW];
    const int whole = mr == MR && nr == NR;
#define RUN(mv, nv)                                                                           \
    micro_tile(mv, nv, depth, a, b, step_b, column_b, c, ldc, whole, nr, alpha, beta, beta_is, \
               tile)
#define RUN_COLUMNS(nv)                     \
    if (MV > 2 && mr <= VW)                 \
        RUN(1, nv);                         \
    else if (MV > 1 && mr <= NARROW_M * VW) \
        RUN(NARROW_M, nv);                  \
    else                                    \
        RUN(MV, nv);
    if (nr > NARROW_N) {
        RUN_COLUMNS(NR)
    } else {
        RUN_COLUMNS(NARROW_N)
    }
#undef RUN
#undef RUN_COLUMNS
    if (!whole)
        store_edge(tile, c, ldc, mr, nr, alpha, beta, beta_is);
}
