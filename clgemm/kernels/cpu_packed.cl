// cpu_packed: the GotoBLAS/BLIS algorithm in one launch, for CPU devices.
//
// As many work-groups as compute units, one work-item each: a work-group is a persistent worker that
// takes tiles of C from a counter until none is left, so a core that is slow or busy takes fewer.  Inside a tile (van Zee and van de Geijn, "BLIS", ACM TOMS 41(3), 2015):
//
//      for pc over K by KC                                   a slice of depth kc
//        for ic over the tile's rows by MC                   pack a block of A       (stays in L2)
//          for j over the tile's columns by NR               pack a panel of B       (once a slice)
//            for i over the block's rows by MR               micro-kernel: MR x NR of C in registers
//
// Scratch belongs to the worker: block of A, then panels of B.  No barrier, no second launch.
//
// Elements of B are broadcast one by one, so B may also be read where it lies (PACK_B 0): each column
// of the micro-tile is a stream of its own.  That saves the packing, which small products never earn
// back and large ones do not need.  Complex B is packed: its parts would be strided streams.

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

#ifndef CLANG_BUILTINS
#define CLANG_BUILTINS 0  // 1: the compiler is clang
#endif
#ifndef PACK_B
#define PACK_B 1  // 0: B is real, not transposed, and read where it lies
#endif

#if CLANG_BUILTINS
// The same as atomic_inc, in one instruction: Intel's runtime takes seven times as long to compile a
// kernel that calls the library's function.
#define TAKE(counter) __sync_fetch_and_add(counter, 1u)
#else
#define TAKE(counter) atomic_inc(counter)
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

// acc += one column of a panel of A times one row of B: column j of B at b[j], the row at e.
INLINE void rank_1(__global const REAL *a, __global const REAL *const *b, long e,
                   REALV acc[NR][AV])
{
    REALV av[AV];
    UNROLL
    for (int v = 0; v < AV; v++)
        av[v] = *(__global const REALV *)(a + v * VW);
    UNROLL
    for (int j = 0; j < NR; j++) {
        const REALV br = (REALV)(b[j][e]);
        UNROLL
        for (int v = 0; v < AV; v++)
            acc[j][v] = fma(av[v], br, acc[j][v]);
#if IS_COMPLEX
        const REALV bi = (REALV)(b[j][e + 1]);
        UNROLL
        for (int v = 0; v < MV; v++) {
            acc[j][v] = fma(-av[MV + v], bi, acc[j][v]);
            acc[j][MV + v] = fma(av[v], bi, acc[j][MV + v]);
        }
#endif
    }
}

// acc += panel of A (depth x MR) * B (depth x NR, step_b reals from row to row).
INLINE void rank_update(int depth, __global const REAL *a, __global const REAL *const *b,
                        long step_b, REALV acc[NR][AV])
{
    int p = 0;
    long e = 0;
    for (; p + KU <= depth; p += KU) {
        UNROLL
        for (int u = 0; u < KU; u++) {
            rank_1(a, b, e, acc);
            a += MR * CE;
            e += step_b;
        }
    }
#if !PACK_B
    for (; p < depth; p++) {  // panels are padded to KU, a matrix is not
        rank_1(a, b, e, acc);
        a += MR * CE;
        e += step_b;
    }
#endif
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

// C (mr x nr) := alpha * A * B + beta * C for a panel of A and NR columns of B, column_b reals apart.
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
    REALV acc[NR][AV];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int v = 0; v < AV; v++)
            acc[j][v] = (REALV)(0);
    __global const REAL *columns[NR];
    UNROLL
    for (int j = 0; j < NR; j++)  // columns beyond the edge repeat the last one
        columns[j] = b + (PACK_B ? j : min(j, nr - 1)) * column_b;
    rank_update(depth, a, columns, step_b, acc);
    if (mr == MR && nr == NR) {
        UNROLL
        for (int j = 0; j < NR; j++)
            store_column(acc[j], (__global REAL *)(c + j * ldc), alpha, beta, beta_is);
    } else {
        store_edge(acc, c, ldc, mr, nr, alpha, beta, beta_is);
    }
}

// C := alpha * op(A) * op(B) + beta * C
//   counters, cell  a zero: how many tiles were taken
//   scratch_stride  reals between the scratch of two workers
//   mt, nt          rows and columns of a tile
//   mc              rows of a block of A
//   kc_max          depth of a slice
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void cpu_packed(GEMM_ARGS, volatile __global uint *counters, int cell,
                __global REAL *restrict scratch, long scratch_stride,
                int mt, int nt, int mc, int kc_max)
{
    const int k = g.k;
    const long lda = g.lda, ldb = g.ldb, ldc = g.ldc;
    const long tiles_m = (g.m + mt - 1) / mt, tiles_n = (g.n + nt - 1) / nt;
    const long tiles = tiles_m * tiles_n * g.batch;
    __global REAL *ap = scratch + get_group_id(0) * scratch_stride;
    __global REAL *bp = ap + (long)CE * (mc + MR) * kc_max;

    for (long t; (t = TAKE(counters + cell)) < tiles;) {
        const long entry = t / (tiles_m * tiles_n);
        const long i0 = t % tiles_m * mt, j0 = t / tiles_m % tiles_n * nt;
        const int rows = min((long)mt, g.m - i0), columns = min((long)nt, g.n - j0);
        __global const ELEM *at = a + g.offset_a + entry * g.stride_a + i0 * (g.trans_a ? lda : 1);
        __global const ELEM *bt = b + g.offset_b + entry * g.stride_b + j0 * (g.trans_b ? 1 : ldb);
        __global ELEM *ct = c + g.offset_c + entry * g.stride_c + i0 + j0 * ldc;

        for (int pc = 0; pc < k; pc += kc_max) {
            const int kc = min(kc_max, k - pc), kp = (kc + KU - 1) / KU * KU;
            const int beta_is = pc ? BETA_ONE : beta_class(beta);
            for (int ic = 0; ic < rows; ic += mc) {
                const int mb = min(mc, rows - ic);
                pack_block(MR, PLANAR, mb, kc, kp, at + (g.trans_a ? pc + ic * lda : ic + pc * lda),
                           lda, g.trans_a, g.conj_a, ap);
                for (int j = 0; j < columns; j += NR) {
                    const int nr = min(NR, columns - j);
#if PACK_B
                    __global REAL *bj = bp + (long)j * kp * CE;
                    if (ic == 0)
                        pack_block(NR, PAIRS, nr, kc, kp,
                                   bt + (g.trans_b ? j + pc * ldb : pc + j * ldb), ldb, !g.trans_b,
                                   g.conj_b, bj);
                    const int depth = kp;
                    const long step_b = NR * CE, column_b = CE;
#else
                    __global const REAL *bj = bt + pc + j * ldb;
                    const int depth = kc;
                    const long step_b = 1, column_b = ldb;
#endif
                    for (int i = 0; i < mb; i += MR)
                        micro_kernel(depth, ap + (long)i * kp * CE, bj, step_b, column_b,
                                     ct + ic + i + j * ldc, ldc, min(MR, mb - i), nr, alpha,
                                     beta, beta_is);
                }
            }
        }
    }
}
