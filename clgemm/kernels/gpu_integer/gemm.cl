// gpu_integer: C := A * B of integers modulo 2^BITS, or of bool, for GPUs; right on any device.
//
// A work-group computes an MC x NC macro-tile of C, a work-item MR x NR elements of it, LANES_M rows
// and LANES_N columns apart.  Slices of depth KC of both operands pass through local memory, as lanes
// of 32 or 64 bits: see integers.cl.
//
// Where macro-tiles are few, k is cut into parts, each a work-group's; a second kernel adds them up.

#ifndef MC
#define MC 64  // rows of the macro-tile
#endif
#ifndef NC
#define NC 64  // columns of the macro-tile
#endif
#ifndef KC
#define KC 16  // depth of a slice
#endif
#ifndef MR
#define MR 4  // rows of a work-item
#endif
#ifndef NR
#define NR 4  // columns of a work-item
#endif

#if IS_BOOL
#define FROM_LANE(x) ((INTEGER)((x) & 1))
#define ADD(x, y) ((x) | (y))
#else
#define FROM_LANE(x) ((INTEGER)(x))
#define ADD(x, y) ((x) + (y))
#endif

#define LANES_M (MC / MR)
#define LANES_N (NC / NR)
#define ITEMS (LANES_M * LANES_N)
#define PAD 1  // so that columns of a tile start in different banks

#define INTEGER_ARGS                                                                           \
    const Gemm g, const ELEM alpha, const ELEM beta, __global const INTEGER *restrict a,       \
        __global const INTEGER *restrict b, __global INTEGER *restrict c,                      \
        __global LANE *restrict scratch

// A slice into its tile, of which `extent` rows (or columns) of `depth` elements are there; neighbours
// read neighbours, along k or across.
INLINE void load_tile(__local LANE *tile, const int width, __global const INTEGER *x, long ld,
                      int along_k, int extent, int depth)
{
    for (int e = get_local_id(0); e < width * KC; e += ITEMS) {
        const int i = along_k ? e / KC : e % width, p = along_k ? e % KC : e / width;
        LANE lane = 0;
        if (i < extent && p < depth)
            lane = TO_LANE(x[along_k ? i * ld + p : i + p * ld]);
        tile[p * (width + PAD) + i] = lane;
    }
}

//   alpha, beta  not read: what runs every plan binds them
//   part         depth of a part of k, a multiple of KC; all of k if C is written at once
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_integer(INTEGER_ARGS, const long part)
{
    __local LANE tile_a[KC * (MC + PAD)], tile_b[KC * (NC + PAD)];
    const long tiles_m = (g.m + MC - 1) / MC, entry = get_group_id(1);
    const long i0 = get_group_id(0) % tiles_m * MC, j0 = get_group_id(0) / tiles_m * NC;
    const int rows = min((long)MC, g.m - i0), columns = min((long)NC, g.n - j0);
    // As an int: of the size_t Intel's runtime (2026.22) takes the remainder for the quotient.
    const int item = get_local_id(0), lane_m = item % LANES_M, lane_n = item / LANES_M;
    const long from = get_group_id(2) * part, to = min(g.k, from + part);
    a += g.offset_a + entry * g.stride_a + i0 * (g.trans_a ? g.lda : 1);
    b += g.offset_b + entry * g.stride_b + j0 * (g.trans_b ? 1 : g.ldb);

    LANE acc[NR][MR];
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++)
            acc[j][i] = 0;

    for (long p0 = from; p0 < to; p0 += KC) {
        const int depth = min((long)KC, to - p0);
        load_tile(tile_a, MC, a + p0 * (g.trans_a ? 1 : g.lda), g.lda, g.trans_a, rows, depth);
        load_tile(tile_b, NC, b + p0 * (g.trans_b ? g.ldb : 1), g.ldb, !g.trans_b, columns, depth);
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL
        for (int p = 0; p < KC; p++) {
            LANE va[MR], vb[NR];
            UNROLL
            for (int i = 0; i < MR; i++)
                va[i] = tile_a[p * (MC + PAD) + lane_m + i * LANES_M];
            UNROLL
            for (int j = 0; j < NR; j++)
                vb[j] = tile_b[p * (NC + PAD) + lane_n + j * LANES_N];
            UNROLL
            for (int j = 0; j < NR; j++)
                UNROLL
                for (int i = 0; i < MR; i++)
                    acc[j][i] = MULTIPLY_ADD(va[i], vb[j], acc[j][i]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    c += g.offset_c + entry * g.stride_c + i0 + j0 * g.ldc;
    scratch += ((get_group_id(2) * g.batch + entry) * g.n + j0) * g.m + i0;
    UNROLL
    for (int j = 0; j < NR; j++)
        UNROLL
        for (int i = 0; i < MR; i++) {
            const int row = lane_m + i * LANES_M, column = lane_n + j * LANES_N;
            if (row < rows && column < columns) {
                if (part < g.k)
                    scratch[row + column * g.m] = acc[j][i];
                else
                    c[row + column * g.ldc] = FROM_LANE(acc[j][i]);
            }
        }
}

// C := the sum of the parts that lie in scratch memory.
__kernel void gpu_integer_sum(INTEGER_ARGS, const int parts)
{
    const long i = get_global_id(0), j = get_global_id(1), entry = get_global_id(2);
    if (i >= g.m)
        return;
    scratch += (entry * g.n + j) * g.m + i;
    LANE sum = 0;
    for (int part = 0; part < parts; part++)
        sum = ADD(sum, scratch[part * g.batch * g.n * g.m]);
    c[g.offset_c + entry * g.stride_c + i + j * g.ldc] = FROM_LANE(sum);
}
