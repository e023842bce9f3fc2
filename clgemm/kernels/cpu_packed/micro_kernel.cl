// The micro-kernel of cpu_packed: MR x NR elements of C in registers, vectors along M, elements of B
// broadcast one by one:
//
//          C        +=      A        *       B
//      NR columns        one row        one row of NR,
//      of MV vectors     of MV vectors  one broadcast each
//
// A complex product is one of reals, twice as high and twice as wide.  The rows of A are its real and
// imaginary parts in turn, as they lie, and so are the columns of B.  Of the accumulators, column 2j
// holds A times the real parts of B's column j, and column 2j + 1 A times the imaginary ones.  They come
// together when they are stored; that is also where conjugation is a sign.
//
// At the edges of C narrower kernels run, of mv < MV vectors and nv < COLUMNS columns; both are constants
// wherever this is inlined.

#ifndef VW
#define VW 16  // vector width: reals in a SIMD register
#endif
#ifndef MR
#define MR 32  // rows of the micro-tile, in whole vectors
#endif
#ifndef NR
#define NR 6  // columns of the micro-tile
#endif
#ifndef PREFETCH_C
#define PREFETCH_C 1  // 1: fetch the micro-tile of C while the k loop runs (needs clang's builtin)
#endif

#ifndef PACK_A
#define PACK_A 1  // 0: panels of A that are whole vectors are read where they lie
#endif
#ifndef PACK_B
#define PACK_B 1  // 0: B is read where it lies
#endif

#ifndef TURNED
#define TURNED 0  // 1: C is stored row by row
#endif
// Where an element of C lies, from its first one.
#if TURNED
#define C_AT(i, j, ldc) ((i) * (ldc) + (j))
#else
#define C_AT(i, j, ldc) ((i) + (j) * (ldc))
#endif

#define MV (MR * CE / VW)  // vectors in a row of a panel of A
#define COLUMNS (NR * CE)  // of accumulators
typedef CAT(REAL, VW) REALV;
#define VLOAD(p) CAT(vload, VW)(0, p)
#if PACK_A
#define ALOAD(p) (*(__global const REALV *)(p))
#else
#define ALOAD(p) VLOAD(p)
#endif
#define VSTORE(x, p) CAT(vstore, VW)(x, 0, p)

#define NARROW_N (NR / 2)  // columns of the kernels for the right edge

// A panel of A: its rows are columns of A.
typedef struct {
    __global const REAL *x;
    long step;                  // reals from row to row
    __global const REAL *next;  // rows to be fetched meanwhile, as far apart (PACK_A 0)
    int every;                  // rows to be multiplied for each that is fetched
} Panel;

// Fetches a row of a panel that is read where it lies.  Such rows are far from each other, and no
// prefetcher of the CPU brings them.  A vector may begin within a line of the cache: then it ends in the
// next one, where the vector after it begins.  So of each the line is fetched in which it ends.
#if !PACK_A && CLANG_BUILTINS
#define LINE_VECTORS (VW * (int)sizeof(REAL) < 64 ? 64 / (VW * (int)sizeof(REAL)) : 1)  // in a line
#define FETCH                                                                                   \
    {                                                                                           \
        UNROLL                                                                                  \
        for (int v = LINE_VECTORS; v < MV + LINE_VECTORS; v += LINE_VECTORS)                    \
            __builtin_prefetch((const void *)(ulong)(next + v * VW - 1), 0, 2);                 \
        next += panel.step;                                                                     \
    }
#else
#define FETCH
#endif

// acc += one row of a panel of A, mv vectors of it, times one row of B, nv reals: column j of B lies at
// b[j], the row at e.  Then on to the next row.
#define RANK_1(mv, nv)                                     \
    {                                                      \
        REALV av[MV];                                      \
        UNROLL                                             \
        for (int v = 0; v < (mv); v++)                     \
            av[v] = ALOAD(a + v * VW);                     \
        UNROLL                                             \
        for (int j = 0; j < (nv); j++) {                   \
            const REALV bj = (REALV)(b[j][e]);             \
            UNROLL                                         \
            for (int v = 0; v < (mv); v++)                 \
                acc[j][v] = fma(av[v], bj, acc[j][v]);     \
        }                                                  \
        a += panel.step;                                   \
        e += step_b;                                       \
    }

// Defines a function: acc += panel of A (depth x mv vectors) * B (depth x nv, step_b).  A macro and not an
// argument, since PoCL unrolls loops before it inlines functions.  The loop over k is not unrolled: Intel's
// compiler would fetch later rows' elements of B early, and spill vectors for them.
#define DEFINE_UPDATE(name, mv, nv)                                                             \
    INLINE void name(int depth, Panel panel, __global const REAL *const *b, long step_b,        \
                     REALV acc[COLUMNS][MV])                                                    \
    {                                                                                           \
        __global const REAL *a = panel.x, *next = panel.next;                                   \
        long e = 0;                                                                             \
        for (int p = 0; p < depth;) {                                                           \
            FETCH                                                                               \
            for (const int last = min(p + panel.every, depth); p < last; p++)                   \
                RANK_1(mv, nv)                                                                  \
        }                                                                                       \
    }
DEFINE_UPDATE(update_1, 1, COLUMNS)
DEFINE_UPDATE(update_right_1, 1, NARROW_N * CE)
#if MV > 1
DEFINE_UPDATE(update_2, 2, COLUMNS)
DEFINE_UPDATE(update_right_2, 2, NARROW_N * CE)
#endif
#if MV > 2
DEFINE_UPDATE(update_3, 3, COLUMNS)
DEFINE_UPDATE(update_right_3, 3, NARROW_N * CE)
#endif
#if MV > 3
DEFINE_UPDATE(update_4, 4, COLUMNS)
DEFINE_UPDATE(update_right_4, 4, NARROW_N * CE)
#endif

// Runs the kernel of mv vectors, and of as many columns as it takes.
#define UPDATE(mv)                                                          \
    {                                                                       \
        if (nr > NARROW_N)                                                  \
            CAT(update_, mv)(depth, a, columns, step_b, acc);               \
        else                                                                \
            CAT(update_right_, mv)(depth, a, columns, step_b, acc);         \
    }

#if IS_COMPLEX
INLINE REALV alternating(REAL even, REAL odd)
{
    REALV x;
    x.even = even;
    x.odd = odd;
    return x;
}

// The elements' real and imaginary parts in each other's place.
INLINE REALV swapped(REALV x)
{
    REALV y;
    y.even = x.odd;
    y.odd = x.even;
    return y;
}

INLINE REALV scaled(ELEM factor, REALV x)
{
    return factor.x * x + alternating(-factor.y, factor.y) * swapped(x);
}
#else
INLINE REALV scaled(ELEM factor, REALV x)
{
    return factor * x;
}
#endif

// Vector v of column j of op(A) * op(B).
INLINE REALV product(REALV acc[COLUMNS][MV], int j, int v, int conj_a, int conj_b)
{
#if IS_COMPLEX
    const REAL a = conj_a ? -1 : 1, b = conj_b ? -1 : 1;
    return alternating(1, a) * acc[2 * j][v] +
           alternating(-a * b, b) * swapped(acc[2 * j + 1][v]);
#else
    return acc[j][v];
#endif
}

INLINE void store_vector(REALV x, __global REAL *c, ELEM beta, int beta_is)
{
    if (beta_is == BETA_ONE)
        x += VLOAD(c);
    else if (beta_is == BETA_ANY)
        x += scaled(beta, VLOAD(c));
    VSTORE(x, c);
}

#if IS_COMPLEX
#define ELEM_AT(x) ((ELEM)((x)[0], (x)[1]))
#else
#define ELEM_AT(x) ((x)[0])
#endif

#if TURNED
#define COLUMN4(j) VLOAD4(0, columns + (j) * MR * CE + i * CE)

// C (mr x nr) := alpha * op(A) * op(B) + beta * C of what the accumulators hold, row by row.
INLINE void store_tile(REALV acc[COLUMNS][MV], __global ELEM *c, long ldc, int mr, int nr,
                       ELEM alpha, int conj_a, int conj_b, ELEM beta, int beta_is)
{
    REAL columns[NR * MR * CE];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int v = 0; v < MV; v++)
            VSTORE(scaled(alpha, product(acc, j, v, conj_a, conj_b)),
                   columns + j * MR * CE + v * VW);
    int i = 0;
    if (nr == NR && beta_is == BETA_ZERO)
        for (; i + 4 <= mr; i += 4, c += 4 * ldc) {
            UNROLL
            for (int j = 0; j + 4 <= NR; j += 4)
                store_turned(COLUMN4(j), COLUMN4(j + 1), COLUMN4(j + 2), COLUMN4(j + 3), c + j, ldc);
            UNROLL
            for (int j = NR / 4 * 4; j < NR; j++)
                UNROLL
                for (int u = 0; u < 4; u++)
                    c[j + u * ldc] = ELEM_AT(columns + j * MR * CE + (i + u) * CE);
        }
    for (; i < mr; i++, c += ldc)
        for (int j = 0; j < nr; j++)
            elem_store(c + j, ELEM_AT(columns + j * MR * CE + i * CE), beta, beta_is);
}
#else
// C (mr x nr) := alpha * op(A) * op(B) + beta * C of what the accumulators hold.
INLINE void store_tile(REALV acc[COLUMNS][MV], __global ELEM *c, long ldc, int mr, int nr,
                       ELEM alpha, int conj_a, int conj_b, ELEM beta, int beta_is)
{
    const int whole = mr * CE / VW;  // vectors
    REAL edge[NR * VW];              // those that hang over the lower edge of C
    UNROLL
    for (int j = 0; j < NR; j++)
        if (j < nr) {
            UNROLL
            for (int v = 0; v < MV; v++) {
                const REALV x = scaled(alpha, product(acc, j, v, conj_a, conj_b));
                if (v < whole)
                    store_vector(x, (__global REAL *)(c + j * ldc) + v * VW, beta, beta_is);
                else if (v == whole)
                    VSTORE(x, edge + j * VW);
            }
        }
    const int above = whole * VW / CE, left = mr - above;
    for (int j = 0; j < (left ? nr : 0); j++)
        for (int i = 0; i < left; i++) {
            const ELEM x = ELEM_AT(edge + j * VW + i * CE);
            elem_store(c + above + i + j * ldc, x, beta, beta_is);
        }
}

#endif

// Whether rows are whole vectors, of which the kernel that covers them reads no others.
INLINE int reads_exactly(int mr)
{
    return mr * CE % VW == 0;
}

// C (mr x nr) := alpha * op(A) * op(B) + beta * C for a panel of A and columns of B that lie column_b
// reals apart, with the narrowest kernel that covers it.
INLINE void micro_kernel(int depth, Panel a, __global const REAL *b, long step_b, long column_b,
                         __global ELEM *c, long ldc, int mr, int nr, ELEM alpha, int conj_a,
                         int conj_b, ELEM beta, int beta_is)
{
#if PREFETCH_C && TURNED
    for (int i = 0; i < mr; i++)
        __builtin_prefetch((const void *)(ulong)(c + i * ldc), 1, 3);
#elif PREFETCH_C
    for (int j = 0; j < nr; j++)
        UNROLL
        for (int i = 0; i < MR * CE * (int)sizeof(REAL); i += 64)
            __builtin_prefetch((const void *)((ulong)(c + j * ldc) + i), 1, 3);
#endif
    REALV acc[COLUMNS][MV];
    __global const REAL *columns[COLUMNS];
    UNROLL
    for (int j = 0; j < COLUMNS; j++) {
        UNROLL
        for (int v = 0; v < MV; v++)
            acc[j][v] = (REALV)(0);
        // Columns beyond the edge repeat the last one.
        columns[j] = b + (PACK_B ? j / CE : min(j / CE, nr - 1)) * column_b + j % CE;
    }
    const int vectors = (mr * CE + VW - 1) / VW;
#if MV > 3
    if (vectors == 4)
        UPDATE(4)
    else
#endif
#if MV > 2
    if (vectors == 3)
        UPDATE(3)
    else
#endif
#if MV > 1
    if (vectors == 2)
        UPDATE(2)
    else
#endif
        UPDATE(1)
    store_tile(acc, c, ldc, mr, nr, alpha, conj_a, conj_b, beta, beta_is);
}
