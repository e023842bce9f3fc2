// gpu_tiled: local-memory tiles and register blocking, for GPUs; right on any device.
//
// A work-group computes an MC x NC macro-tile of C, a work-item MR x NR of it.  Slices of depth KC of
// op(A) and op(B) pass through local memory (gpu_tiled/tile.cl).  With two STAGES a slice is multiplied while
// the next one is already on its way into registers, and one barrier a slice suffices.  An operand
// that has no tile (LOCAL_x = 0) is read from global memory where it is multiplied.
//
// A macro-tile alone may have too few work-items to hide each other's waits.  With SLICED_K shares of
// the group each covers the tile and multiplies its part of every slice; in the end the shares' sums
// are added through local memory (reduce-scatter), so that each stores its part of the columns.
//
// A work-item's MR rows are MR/VW vectors of VW elements, LANES_M * VW apart, its columns likewise:
//
//      lanes of a group of 32, LANES_M = 8, ZORDER = 1          one octet reads 2 vectors of A and 4
//      (rows of the picture along M, columns along N):          of B: the fewest local-memory cycles,
//                                                               since 16-byte reads go by octets
//           0  2  4  6                                          (ZORDER = 0 counts down the columns)
//           1  3  5  7
//           8 10 12 14
//           9 11 13 15
//          16 18 20 22  ...
//
// Work-groups are rastered in bands of GROUP_M macro-tiles, which keeps their operands in L2.

#define DEPTH (KC / SLICED_K)  // steps along k of one share of the work-group
#ifndef KU
#define KU DEPTH  // of them, how many are unrolled: a divisor
#endif
#ifndef STAGES
#define STAGES 2  // tiles of each operand in local memory
#endif
#ifndef AHEAD
#define AHEAD 0  // 1: local memory is read a step ahead, past the barrier; DEPTH is even, two STAGES
#endif
#ifndef ENDS_EARLY
#define ENDS_EARLY 0  // steps of a slice after each of which it may end, a divisor of DEPTH; 0: it does not
#endif
#ifndef LANES_M
#define LANES_M 8  // work-items along M in a group of 32 neighbours
#endif
#ifndef ZORDER
#define ZORDER 1  // 1: neighbours are 2 x 4 blocks; needs LANES_M <= 8
#endif
#ifndef GROUP_M
#define GROUP_M 8  // macro-tiles in a band of the raster
#endif
#ifndef PACKED
#define PACKED 0  // 1: slices come from scratch memory, packed by gpu_tile_pack
#endif
#ifndef SPLIT
#define SPLIT 0  // parts of k go to work-groups of their own, 1: products to scratch memory, of which
                 // gpu_tile_sum makes C; 2: likewise, and the last part adds them (nv_ticket.cl)
#endif
#ifndef WIDE_A
#define WIDE_A 0  // LOCAL_A = 0: vectors of VW elements of A may be read as one
#endif
#ifndef WIDE_B
#define WIDE_B 0
#endif
#ifndef WIDE_C
#define WIDE_C 0  // vectors of VW elements of C may be accessed as one if C is aligned
#endif

#define LANES_N (32 / LANES_M)
// Vector number u of the work-item's rows or columns: where it starts in the macro-tile.
#define ROW(u) ((first_m + (u) * LANES_M) * VW)
#define COLUMN(u) ((first_n + (u) * LANES_N) * VW)
// Local memory: all stages of A, of B from a multiple of 16 on; later, half of the shares' sums.
#define AT_B ((STAGES * TILE_A + 15) / 16 * 16)
#define SUMS (SLICED_K > 1 ? SLICED_K * (MC * NC) / 2 : 1)
#if PACKED  // panels are p-major and conjugated
#define KEPT_ALONG_A 0
#define KEPT_ALONG_B 0
#define CONJ_A 0
#define CONJ_B 0
#else
#define KEPT_ALONG_A ALONG_K_A
#define KEPT_ALONG_B ALONG_K_B
#define CONJ_A g.conj_a
#define CONJ_B g.conj_b
#endif

#if SPLIT == 2
// The same, and a counter for each macro-tile, zero before the launch and after it.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_tiled(GEMM_ARGS, __global ELEM *restrict scratch, const long at_b, const long at_c,
               const int part, __global uint *tickets)
#elif PACKED || SPLIT
// at_b, at_c: where packed B and the partial products begin; part: slices of one part of k.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_tiled(GEMM_ARGS, __global ELEM *restrict scratch, const long at_b, const long at_c,
               const int part)
#else
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_tiled(GEMM_ARGS)
#endif
{
    __local ELEM tiles[AT_B + STAGES * TILE_B > SUMS ? AT_B + STAGES * TILE_B : SUMS]
        __attribute__((aligned(64)));
    __local ELEM *const tile_a = tiles, *const tile_b = tiles + AT_B;
#if SPLIT == 2
    __local int is_last;
#endif

    // Raster: bands of GROUP_M macro-tiles along M, walked along N.
    const int m = g.m, n = g.n, k = g.k;
    const int tiles_m = (m + MC - 1) / MC, tiles_n = (n + NC - 1) / NC;
    const int tile = get_group_id(0), band = GROUP_M * tiles_n;
    const int first = tile / band * GROUP_M, height = min(tiles_m - first, GROUP_M);
    const int tile_m = first + tile % band % height, tile_n = tile % band / height;
    const int rows = min(m - tile_m * MC, MC), columns = min(n - tile_n * NC, NC);
    const long i0 = (long)tile_m * MC, j0 = (long)tile_n * NC, entry = get_group_id(1);
    int slices = (k + KC - 1) / KC, from = 0;  // this work-group's
    // Above the diagonal nothing is multiplied nor stored: what lies below it is mirrored.  No return:
    // PoCL's compiler crashes at one before a barrier.
    const int above = g.triangle && i0 + MC <= j0;

    // a and b: op(A) and op(B) at the macro-tile's first row or column, then at the slice to come.
#if PACKED
    a = scratch + ((g.stride_a ? entry : 0) * tiles_m + tile_m) * slices * (MC * KC);
    b = scratch + at_b + ((g.stride_b ? entry : 0) * tiles_n + tile_n) * slices * (NC * KC);
    const long step_a = MC * KC, step_b = NC * KC;
#else
    a += g.offset_a + entry * g.stride_a + i0 * (ALONG_K_A ? g.lda : 1);
    b += g.offset_b + entry * g.stride_b + j0 * (ALONG_K_B ? g.ldb : 1);
    const long step_a = ALONG_K_A ? KC : KC * g.lda, step_b = ALONG_K_B ? KC : KC * g.ldb;
#endif
#if SPLIT
    from = get_group_id(2) * part;
    slices = min(slices - from, part);
    a += from * step_a;
    b += from * step_b;
#endif
    slices = above ? 0 : slices;

    const int item = SLICED_K > 1 ? get_local_id(0) % SHARE : get_local_id(0);
    const int lane = item % 32, lanes = item / 32;
    const int share = SLICED_K > 1 ? get_local_id(0) / SHARE : 0, first_p = share * DEPTH;
#if ZORDER
    const int octet = lane / 8;
    const int inner_m = octet % (LANES_M / 2) * 2 + lane % 2;
    const int inner_n = octet / (LANES_M / 2) * 4 + lane / 2 % 4;
#else
    const int inner_m = lane % LANES_M, inner_n = lane / LANES_M;
#endif
    // The work-item's first row and column, in vectors.
    const int first_m = inner_m + lanes % (MC / MR / LANES_M) * LANES_M * (MR / VW);
    const int first_n = inner_n + lanes / (MC / MR / LANES_M) * LANES_N * (NR / VW);

    ELEM acc[NR][MR];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++)
            acc[j][i] = (ELEM)(0);

    VecG next_a[VEC_A], next_b[VEC_B];
    int stage = 0;
#if PACKED
#define FETCH(guard)                                                                           \
    fetch_packed(next_a, VEC_A, a);                                                            \
    fetch_packed(next_b, VEC_B, b);
#else
    const int last_a = LAST(rows, ALONG_K_A), last_b = LAST(columns, ALONG_K_B);
#define FETCH(guard)                                                                           \
    if (LOCAL_A)                                                                               \
        fetch(next_a, VEC_A, MC, a, g.lda, ALONG_K_A, last_a, depth, guard);                   \
    if (LOCAL_B)                                                                               \
        fetch(next_b, VEC_B, NC, b, g.ldb, ALONG_K_B, last_b, depth, guard);
#endif
    // The next slice, `depth` or more deep, into registers; then from there into its tiles.
#define FETCH_NEXT(depth_left)                                                                 \
    {                                                                                          \
        const int depth = (depth_left);                                                        \
        if (depth >= KC) {                                                                     \
            FETCH(0)                                                                           \
        } else {                                                                               \
            FETCH(1)                                                                           \
        }                                                                                      \
        a += LOCAL_A ? step_a : 0;                                                             \
        b += LOCAL_B ? step_b : 0;                                                             \
    }
#define KEEP_NEXT()                                                                            \
    if (LOCAL_A)                                                                               \
        keep(tile_a + stage * TILE_A, LD_A, TURN_A, next_a, VEC_A, MC, KEPT_ALONG_A, CONJ_A);     \
    if (LOCAL_B)                                                                               \
        keep(tile_b + stage * TILE_B, LD_B, TURN_B, next_b, VEC_B, NC, KEPT_ALONG_B, CONJ_B);

    // Step p of this share's part of the slice at hand: a column of A and a row of B.
    VecW va[1 + AHEAD][MR / VW], vb[1 + AHEAD][NR / VW];
#define READ(to, p)                                                                            \
    UNROLL for (int u = 0; u < MR / VW; u++)                                                   \
        va[to][u] = LOCAL_A ? tile_read(tile_a + stage * TILE_A, LD_A, TURN_A, ROW(u),         \
                                        first_p + (p))                                         \
                            : global_read(a + (p) * (ALONG_K_A ? 1 : g.lda), g.lda, ALONG_K_A, \
                                          ROW(u), rows, WIDE_A, g.conj_a);                     \
    UNROLL for (int u = 0; u < NR / VW; u++)                                                   \
        vb[to][u] = LOCAL_B ? tile_read(tile_b + stage * TILE_B, LD_B, TURN_B, COLUMN(u),      \
                                        first_p + (p))                                         \
                            : global_read(b + (p) * (ALONG_K_B ? 1 : g.ldb), g.ldb, ALONG_K_B, \
                                          COLUMN(u), columns, WIDE_B, g.conj_b);

    // Whether step p and all after it are beyond k: a short k is not rounded up to whole slices.
#define ENDS(p) (ENDS_EARLY && (p) > 0 && (p) % ENDS_EARLY == 0 && first_p + (p) >= left)
    int left = k - from * KC;  // elements along k from the slice at hand on
    FETCH_NEXT(left)
    KEEP_NEXT()
    if (LOCAL_A || LOCAL_B)
        barrier(CLK_LOCAL_MEM_FENCE);
#if AHEAD
    READ(0, 0)
#endif
    for (int slice = 0; slice < slices; slice++, left -= KC) {
        const int more = slice + 1 < slices;
        if (STAGES == 2 && more)
            FETCH_NEXT(left - KC)

#if AHEAD
        UNROLL
        for (int p = 0; p < DEPTH; p++) {
            if (ENDS(p))
                break;
            if (p + 1 < DEPTH) {
                READ((p + 1) % 2, p + 1)
            } else if (more) {
                stage ^= 1;
                KEEP_NEXT()
                barrier(CLK_LOCAL_MEM_FENCE);
                READ(0, 0)
            }
            multiply(acc, va[p % 2], vb[p % 2]);
        }
#else
        _Pragma("unroll 1")
        for (int block = 0; block < DEPTH; block += KU) {
            UNROLL
            for (int p = block; p < block + KU; p++) {
                if ((!(LOCAL_A && LOCAL_B) && p >= left) || ENDS(p))
                    break;  // a tile holds zeros there, global memory anything
                READ(0, p)
                multiply(acc, va[0], vb[0]);
            }
        }
        a += LOCAL_A ? 0 : step_a;
        b += LOCAL_B ? 0 : step_b;
        if (more) {
            if (STAGES == 1) {
                barrier(CLK_LOCAL_MEM_FENCE);
                FETCH_NEXT(left - KC)
            }
            stage ^= STAGES - 1;
            KEEP_NEXT()
            if (LOCAL_A || LOCAL_B)
                barrier(CLK_LOCAL_MEM_FENCE);
        }
#endif
    }

    int first_j = 0;  // of the work-item's columns, those that its share stores
#if SLICED_K > 1
    // Pairs of shares: each gives the other half of its columns and adds what it gets to the rest.
    UNROLL
    for (int bit = 1, kept = NR / 2; bit < SLICED_K; bit *= 2, kept /= 2) {
        const int upper = (share & bit) != 0;
        const int other = get_local_id(0) + (upper ? -bit : bit) * SHARE;
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL
        for (int j = 0; j < kept; j++)
            UNROLL
            for (int i = 0; i < MR; i++)
                tiles[(j * MR + i) * ITEMS + get_local_id(0)] =
                    upper ? acc[j][i] : acc[j + kept][i];
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL
        for (int j = 0; j < kept; j++)
            UNROLL
            for (int i = 0; i < MR; i++)
                acc[j][i] = (upper ? acc[j + kept][i] : acc[j][i]) +
                            tiles[(j * MR + i) * ITEMS + other];
        first_j += upper ? kept : 0;
    }
#endif

#if SPLIT == 2
    // A work-item's vectors of VW elements, as it has them, ITEMS vectors apart.
    const int parts = get_num_groups(2), number = entry * tiles_m * tiles_n + tile;
    __global VecW *const sums = (__global VecW *)(scratch + at_c) +
                                (long)number * parts * (MC * NC / VW) + get_local_id(0);
#define SUM(part, j, u) sums[((part) * (NR / SLICED_K * MR / VW) + (j) * (MR / VW) + (u)) * ITEMS]
    UNROLL
    for (int j = 0; j < NR / SLICED_K; j++)
        UNROLL
        for (int u = 0; u < MR / VW; u++) {
            VecW v;
            UNROLL
            for (int i = 0; i < VW; i++)
                v.e[i] = acc[j][u * VW + i];
            SUM(get_group_id(2), j, u).whole = v.whole;
        }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0)
        is_last = is_last_ticket(tickets + number, parts);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    if (!is_last)
        return;
    for (int p = 0; p < parts; p++) {  // in their order, so that results repeat
        UNROLL
        for (int j = 0; j < NR / SLICED_K; j++)
            UNROLL
            for (int u = 0; u < MR / VW; u++) {
                VecW v;
                v.whole = SUM(p, j, u).whole;
                UNROLL
                for (int i = 0; i < VW; i++)
                    acc[j][u * VW + i] = p ? acc[j][u * VW + i] + v.e[i] : v.e[i];
            }
    }
#endif
#if SPLIT == 1
    const ELEM scale = ELEM_ONE;
    const int beta_is = BETA_ZERO;
    const long ldc = m;
    c = scratch + at_c + (get_group_id(2) * g.batch + entry) * ldc * n;
#else
    const ELEM scale = alpha;
    const int beta_is = beta_class(beta);
    const long ldc = g.ldc;
    c += g.offset_c + entry * g.stride_c;
#endif
    c += i0 + j0 * ldc;
    const int wide = WIDE_C && (size_t)c % sizeof(VecW) == 0;
    UNROLL
    for (int j = 0; j < NR / SLICED_K; j++) {
        const int column = COLUMN((first_j + j) / VW) + (first_j + j) % VW;
        UNROLL
        for (int u = 0; u < MR / VW; u++) {
            VecW v;
            UNROLL
            for (int i = 0; i < VW; i++)
                v.e[i] = elem_mul(scale, acc[j][u * VW + i]);
            if (column < columns && !above)
                vec_store(c + ROW(u) + column * ldc, v, rows - ROW(u), beta, beta_is, wide);
        }
    }
}
