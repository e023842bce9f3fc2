// gpu_tiled: local-memory tiles and register blocking, for GPUs; right on any device.
//
// A work-group computes an MC x NC macro-tile of C, a work-item MR x NR of it.  Slices of depth KC of
// op(A) and op(B) pass through two local buffers: while one is multiplied, the next slice is already
// on its way into registers, so one barrier a slice suffices.
//
//      local A:  KC rows of MC elements (+ PAD)      p-major, so that a column of the macro-tile
//      local B:  KC rows of NC elements (+ PAD)      is read as vectors without a transposition
//
// A work-item's MR rows are MR/VW vectors of VW elements, LANES_M * VW apart inside its group of
// lanes; so neighbours read neighbouring vectors (no bank conflicts) and store whole vectors' lines.
// Work-groups are rastered in bands of GROUP_M macro-tiles, which keeps their operands in L2.

#ifndef MC
#define MC 64  // rows of the macro-tile
#endif
#ifndef NC
#define NC 64  // columns of the macro-tile
#endif
#ifndef KC
#define KC 8  // depth of a slice
#endif
#ifndef MR
#define MR 4  // rows of the micro-tile, a multiple of VW
#endif
#ifndef NR
#define NR 4  // columns of the micro-tile, a multiple of VW
#endif
#ifndef VW
#define VW 4  // vector width of local memory reads and, where WIDE_x is set, of global ones
#endif
#ifndef PAD
#define PAD 4  // elements added to a row of a local tile: column writes would hit one bank
#endif
#ifndef LANES_M
#define LANES_M 8  // work-items along M in a group of 32 neighbours
#endif
#ifndef GROUP_M
#define GROUP_M 8  // macro-tiles in a band of the raster
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: op(A) is the transposed of what lies in memory
#endif
#ifndef TRANS_B
#define TRANS_B 0
#endif
#ifndef WIDE_A
#define WIDE_A 0  // 1: lda and the address of A are multiples of VW elements
#endif
#ifndef WIDE_B
#define WIDE_B 0
#endif

#define ITEMS_M (MC / MR)
#define ITEMS_N (NC / NR)
#define ITEMS (ITEMS_M * ITEMS_N)
#define LANES_N (32 / LANES_M)
#define LD_A (MC + PAD)
#define LD_B (NC + PAD)
#define VEC_A (MC * KC / VW / ITEMS)  // vectors of A that a work-item moves a slice
#define VEC_B (NC * KC / VW / ITEMS)

// Reals in VW elements, as a number that can be pasted to a type's name.
#if VW * CE == 1
#define WIDTH
#elif VW * CE == 2
#define WIDTH 2
#elif VW * CE == 4
#define WIDTH 4
#elif VW * CE == 8
#define WIDTH 8
#else
#define WIDTH 16
#endif

// VW elements, moved as one vector and used one by one.
typedef CAT(REAL, WIDTH) RealVec;
typedef union {
    RealVec whole;
    ELEM e[VW];
} Vec;

// VW elements of a matrix that lie in a row in memory: first (fast, slow) = (f, s) at x[f + s * ld].
// With `guard`, elements beyond the matrix are zero.
INLINE Vec load_vec(__global const ELEM *x, long ld, long f, long s, long fast, long slow,
                    int wide, int guard)
{
    Vec v;
    if (!guard || (s < slow && f + VW <= fast)) {
        __global const ELEM *p = x + f + s * ld;
        if (wide) {
            v.whole = *(__global const RealVec *)p;
        } else {
            UNROLL
            for (int i = 0; i < VW; i++)
                v.e[i] = p[i];
        }
    } else {
        UNROLL
        for (int i = 0; i < VW; i++)
            v.e[i] = s < slow && f + i < fast ? x[f + i + s * ld] : (ELEM)(0);
    }
    return v;
}

// Vector number q of a slice that is `width` wide (MC or NC) and KC deep: where it starts.
// `turned`: vectors run along k, else along the width.
#define SLICE_W(q, width, turned) ((turned) ? (q) / (KC / VW) : (q) % ((width) / VW) * VW)
#define SLICE_P(q, width, turned) ((turned) ? (q) % (KC / VW) * VW : (q) / ((width) / VW))

INLINE void store_vec(__local ELEM *tile, int ld, int w, int p, int turned, int conj, Vec v)
{
    if (turned) {
        UNROLL
        for (int i = 0; i < VW; i++)
            tile[(p + i) * ld + w] = elem_conj(v.e[i], conj);
    } else {
        UNROLL
        for (int i = 0; i < VW; i++)
            v.e[i] = elem_conj(v.e[i], conj);
        *(__local RealVec *)(tile + p * ld + w) = v.whole;
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_tiled(GEMM_ARGS)
{
    __local ELEM tile_a[2 * KC * LD_A] __attribute__((aligned(sizeof(Vec))));
    __local ELEM tile_b[2 * KC * LD_B] __attribute__((aligned(sizeof(Vec))));

    // Raster: bands of GROUP_M macro-tiles along M, walked along N.
    const int m = g.m, n = g.n, k = g.k;
    const int tiles_m = (m + MC - 1) / MC, tiles_n = (n + NC - 1) / NC;
    const int tile = get_group_id(0), band = GROUP_M * tiles_n;
    const int first = tile / band * GROUP_M, height = min(tiles_m - first, GROUP_M);
    const long i0 = (long)(first + tile % band % height) * MC, j0 = (long)(tile % band / height) * NC;

    a += g.offset_a + get_group_id(1) * g.stride_a;
    b += g.offset_b + get_group_id(1) * g.stride_b;
    c += g.offset_c + get_group_id(1) * g.stride_c;

    const int item = get_local_id(0), lane = item % 32, lanes = item / 32;
    const int lanes_m = ITEMS_M / LANES_M;
    const int im = lane % LANES_M + lanes % lanes_m * LANES_M * (MR / VW);  // in vectors
    const int in = lane / LANES_M + lanes / lanes_m * LANES_N * (NR / VW);

    ELEM acc[NR][MR];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++)
            acc[j][i] = (ELEM)(0);

    Vec next_a[VEC_A], next_b[VEC_B];
#define FETCH(p0, guard)                                                                       \
    UNROLL for (int u = 0; u < VEC_A; u++)                                                     \
    {                                                                                          \
        const int q = item + u * ITEMS;                                                        \
        const long w = i0 + SLICE_W(q, MC, TRANS_A), p = (p0) + SLICE_P(q, MC, TRANS_A);       \
        next_a[u] = TRANS_A ? load_vec(a, g.lda, p, w, k, m, WIDE_A, guard)                    \
                            : load_vec(a, g.lda, w, p, m, k, WIDE_A, guard);                   \
    }                                                                                          \
    UNROLL for (int u = 0; u < VEC_B; u++)                                                     \
    {                                                                                          \
        const int q = item + u * ITEMS;                                                        \
        const long w = j0 + SLICE_W(q, NC, !TRANS_B), p = (p0) + SLICE_P(q, NC, !TRANS_B);     \
        next_b[u] = TRANS_B ? load_vec(b, g.ldb, w, p, n, k, WIDE_B, guard)                    \
                            : load_vec(b, g.ldb, p, w, k, n, WIDE_B, guard);                   \
    }
#define KEEP(stage)                                                                            \
    UNROLL for (int u = 0; u < VEC_A; u++)                                                     \
    {                                                                                          \
        const int q = item + u * ITEMS;                                                        \
        store_vec(tile_a + (stage) * KC * LD_A, LD_A, SLICE_W(q, MC, TRANS_A),                 \
                  SLICE_P(q, MC, TRANS_A), TRANS_A, g.conj_a, next_a[u]);                      \
    }                                                                                          \
    UNROLL for (int u = 0; u < VEC_B; u++)                                                     \
    {                                                                                          \
        const int q = item + u * ITEMS;                                                        \
        store_vec(tile_b + (stage) * KC * LD_B, LD_B, SLICE_W(q, NC, !TRANS_B),                \
                  SLICE_P(q, NC, !TRANS_B), !TRANS_B, g.conj_b, next_b[u]);                    \
    }

    const int inside = i0 + MC <= m && j0 + NC <= n;  // only the last slice can hang over
    FETCH(0, 1)
    KEEP(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    int stage = 0;
    for (int p0 = 0; p0 < k; p0 += KC) {
        const int more = k - p0 > KC;
        if (more && inside && k - p0 >= 2 * KC) {
            FETCH((long)p0 + KC, 0)
        } else if (more) {
            FETCH((long)p0 + KC, 1)
        }
        UNROLL
        for (int p = 0; p < KC; p++) {
            Vec fa[MR / VW], fb[NR / VW];
            UNROLL
            for (int u = 0; u < MR / VW; u++)
                fa[u].whole = *(__local const RealVec *)(tile_a + (stage * KC + p) * LD_A +
                                                         (im + u * LANES_M) * VW);
            UNROLL
            for (int u = 0; u < NR / VW; u++)
                fb[u].whole = *(__local const RealVec *)(tile_b + (stage * KC + p) * LD_B +
                                                         (in + u * LANES_N) * VW);
            UNROLL
            for (int j = 0; j < NR; j++)
                UNROLL
                for (int i = 0; i < MR; i++)
                    acc[j][i] = elem_fma(fa[i / VW].e[i % VW], fb[j / VW].e[j % VW], acc[j][i]);
        }
        if (more) {
            stage ^= 1;
            KEEP(stage)
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }

    const int beta_is = beta_class(beta);
    UNROLL
    for (int j = 0; j < NR; j++) {
        const long col = j0 + (in + j / VW * LANES_N) * VW + j % VW;
        UNROLL
        for (int i = 0; i < MR; i++) {
            const long row = i0 + (im + i / VW * LANES_M) * VW + i % VW;
            if (row < m && col < n)
                elem_store(c + row + col * g.ldc, elem_mul(alpha, acc[j][i]), beta, beta_is);
        }
    }
}
