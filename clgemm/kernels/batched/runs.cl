// batched: stacks of which an entry of A, and of B, is one run of elements without gaps, for GPUs.
//
// A run begins anywhere, so rows cannot be read by vectors; but the run can, from the vector on in which
// it begins.  It lies in local memory as in the global one, all of it, and is read element by element to
// be multiplied: neighbouring work-items read neighbouring rows, which are K elements apart if elements
// that are neighbours in memory are so along k, and few of them at a time.
//
// A work-group has ENTRIES entries, and so many run at a time that they hide each other's waits.

#ifndef ENTRIES
#define ENTRIES 1  // of the stack, that a work-group has
#endif
#ifndef M
#define M 4
#endif
#ifndef N
#define N 4
#endif
#ifndef K
#define K 4
#endif
#ifndef VG
#define VG 1  // elements of a vector: A and B begin at multiples of it
#endif
#ifndef ASYNC
#define ASYNC 0  // 1: by NVIDIA's asynchronous copies, from compute capability 8.0 on
#endif
#ifndef ALONG_K_A
#define ALONG_K_A 0  // 1: elements of A that are neighbours in memory are so along k
#endif

#define MC (MR * LANES_M)
#define NC (NR * LANES_N)
#define SHARE (LANES_M * LANES_N)
#define ITEMS (SHARE * ENTRIES)
#define RUN_A (M * K)
#define RUN_B (K * N)
#define TURNS(run) ((((run) + 2 * VG - 2) / VG + SHARE - 1) / SHARE)  // vectors of a work-item
// Elements of the tile: micro-tiles read beyond the run, for rows and columns that C has not.
#define TILE(along_k, size, width) \
    (((along_k ? width * K : (K - 1) * size + width) + 2 * VG) / VG * VG)
#define TILE_A TILE(ALONG_K_A, M, MC)
#define TILE_B TILE(ALONG_K_B, N, NC)
#define ROW_A (ALONG_K_A ? K : 1)  // from a row to the next one, ...
#define STEP_A (ALONG_K_A ? 1 : M)  // ... and from a step along k
#define COLUMN_B (ALONG_K_B ? K : 1)
#define STEP_B (ALONG_K_B ? 1 : N)

// Copies the run of `count` elements from `first` on, whole vectors of it; the first one's element
// `first` % VG is its first.  `end`: of the last entry's run.
INLINE void copy_run(__local ELEM *tile, __global const ELEM *x, long first, int count, long end,
                     int lane)
{
    const int shift = (int)(first % VG), left = (int)min(end - first, (long)1 << 30) + shift;
    x += first - shift;
    UNROLL
    for (int u = 0; u < TURNS(count); u++) {
        const int at = (lane + u * SHARE) * VG;
        if (at >= shift + count)
            continue;
        if (at + VG <= left) {
#if ASYNC
            async_copy16(LOCAL_ADDRESS(tile + at), x + at, 16);
#else
            *(__local VECTOR(VG) *)(tile + at) = *(__global const VECTOR(VG) *)(x + at);
#endif
        } else {
            for (int i = at; i < left; i++)
                tile[i] = x[i];
        }
    }
}

// acc += the product of the micro-tile's rows and columns.
INLINE void multiply(ELEM *acc, const Gemm g, __local const ELEM *a, __local const ELEM *b,
                     int lane_m, int lane_n)
{
    a += lane_m * ROW_A;
    b += lane_n * COLUMN_B;
    _Pragma("unroll 4")
    for (int p = 0; p < K; p++) {
        ELEM left[MR], right[NR];
        UNROLL
        for (int i = 0; i < MR; i++)
            left[i] = elem_conj(a[i * LANES_M * ROW_A + p * STEP_A], g.conj_a);
        UNROLL
        for (int j = 0; j < NR; j++)
            right[j] = elem_conj(b[j * LANES_N * COLUMN_B + p * STEP_B], g.conj_b);
        add_product(acc, left, right);
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void batched_runs(GEMM_ARGS)
{
    __local ELEM tiles_a[ENTRIES * TILE_A] __attribute__((aligned(16)));
    __local ELEM tiles_b[ENTRIES * TILE_B] __attribute__((aligned(16)));
    const int item = get_local_id(0), lane = item % SHARE, own = item / SHARE;
    const int lane_m = lane % LANES_M, lane_n = lane / LANES_M;
    __local ELEM *tile_a = tiles_a + own * TILE_A, *tile_b = tiles_b + own * TILE_B;

    // Beyond the last entry of a stack nothing is copied or stored.
    const long entry = get_group_id(0) * (long)ENTRIES + own, last = g.batch - 1;
    const long first_a = g.offset_a + entry * g.stride_a;
    const long first_b = g.offset_b + entry * g.stride_b;
    copy_run(tile_a, a, first_a, RUN_A, g.offset_a + last * g.stride_a + RUN_A, lane);
    copy_run(tile_b, b, first_b, RUN_B, g.offset_b + last * g.stride_b + RUN_B, lane);
#if ASYNC
    async_copy_commit();
    ASYNC_COPY_WAIT(0);
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    ELEM acc[NR * MR];
    UNROLL
    for (int x = 0; x < NR * MR; x++)
        acc[x] = (ELEM)(0);
    multiply(acc, g, tile_a + first_a % VG, tile_b + first_b % VG, lane_m, lane_n);
    if (entry <= last)
        store(acc, g, alpha, beta, c + g.offset_c + entry * g.stride_c, M, N, lane_m, lane_n);
}
