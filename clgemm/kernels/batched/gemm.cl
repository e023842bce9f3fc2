// batched: stacks of small matrices, for GPUs; right for any problem on any device.
//
// A work-group computes bundles of ENTRIES entries of a stack, its own and every one that is as many
// further as there are groups: SHARE work-items each an MC x NC macro-tile of C, one work-item MR x NR
// of it.  That is all of C if the matrices are small; else the second dimension of the grid walks
// through its macro-tiles.  Slices of A and B of depth KC are read by the whole group, through
// registers into local memory, each kept as it lies:
//
//      p-major:   KC rows of MC or NC elements            columns of A, rows of B are contiguous
//      along k:   MC or NC rows of KC elements, + PAD     the others; an odd number of vectors
//
// From the first, vectors of V rows or columns are read to be multiplied, from the second vectors of
// VK elements along k, so VK steps along k are multiplied at a time.  With AHEAD the next slice, of the
// same bundle or of the next, is on its way to the registers while one is multiplied.

#ifndef ENTRIES
#define ENTRIES 1  // of the stack, that a work-group has
#endif
#ifndef KC
#define KC 4  // depth of a slice, a multiple of VK
#endif
#ifndef VK
#define VK 1  // elements of a vector along k
#endif
#ifndef VG
#define VG 1  // elements of a vector of global memory: divides extents, offsets, strides; at most VK
#endif
#ifndef GROUPS
#define GROUPS 0  // that a compute unit of NVIDIA's shall hold, see ptx.py; 0: its assembler decides
#endif
#ifndef AHEAD
#define AHEAD 0  // 1: the next slice is read before one is multiplied; 0: after
#endif
#ifndef ALONG_K_A
#define ALONG_K_A 0  // 1: elements of A that are neighbours in memory are so along k
#endif
#ifndef TILED
#define TILED 1  // 0: one macro-tile is all of C
#endif
#ifndef GUARD_M
#define GUARD_M 1  // 0: whole macro-tiles cover C along M
#endif
#ifndef GUARD_N
#define GUARD_N 1
#endif
#ifndef GUARD_K
#define GUARD_K 1  // 0: whole slices cover k
#endif

#define MC (MR * LANES_M)
#define NC (NR * LANES_N)
#define SHARE (LANES_M * LANES_N)
#define ITEMS (SHARE * ENTRIES)
#define PAD (VK * (1 + KC / VK % 2))  // elements behind a row along k: rows would begin in the same bank
#define LD_A (ALONG_K_A ? KC + PAD : MC)
#define LD_B (ALONG_K_B ? KC + PAD : NC)
#define TILE_A (LD_A * (ALONG_K_A ? MC : KC))
#define TILE_B (LD_B * (ALONG_K_B ? NC : KC))
#define TURNS(extent) ((extent * KC / VG + SHARE - 1) / SHARE)  // vectors of a work-item

typedef union {
    VECTOR(VK) whole;
    ELEM e[VK];
} VecK;
typedef VECTOR(VG) RealsG;
typedef union {
    RealsG whole;
    ELEM e[VG];
} VecG;

// Vector number `u` of a work-item, of a slice of its entry.
typedef struct {
    int across, along;  // row of the tile, or column; element of it
    int is_there;
} Place;

INLINE Place place_of(int u, int lane, int along_k, int width)
{
    const int row = along_k ? KC / VG : width / VG, vectors = width * KC / VG;
    Place at = {(lane + u * SHARE) / row, (lane + u * SHARE) % row * VG, lane + u * SHARE < vectors};
    if (SHARE % row == 0)  // addresses are constant steps apart, of which the compiler knows
        at.across = lane / row + u * (SHARE / row), at.along = lane % row * VG;
    if (vectors % SHARE == 0)
        at.is_there = 1;
    return at;
}

#define IS_WITHIN(p, depth) (!GUARD_K || (p) < (depth))

// Reads a slice of an entry.  `wide`, `depth`: what there is of it; beyond are zeros, since what is
// beyond k in one operand meets what is beyond k in the other.
INLINE void read_slice(VecG *next, __global const ELEM *x, long ld, int along_k, int width, int guard,
                       int wide, int depth, int lane)
{
    UNROLL
    for (int u = 0; u < TURNS(width); u++) {
        const Place at = place_of(u, lane, along_k, width);
        const int w = along_k ? at.across : at.along, p = along_k ? at.along : at.across;
        next[u].whole = (RealsG)(0);
        if (at.is_there && (!guard || w < wide) && IS_WITHIN(p, depth))
            next[u].whole = *(__global const RealsG *)(x + at.along + at.across * ld);
    }
}

// Writes it into local memory.
INLINE void write_slice(__local ELEM *tile, const VecG *next, int along_k, int width, int conj,
                        int lane)
{
    const int ld_tile = along_k ? KC + PAD : width;
    UNROLL
    for (int u = 0; u < TURNS(width); u++) {
        const Place at = place_of(u, lane, along_k, width);
        VecG v = next[u];
        UNROLL
        for (int i = 0; i < VG; i++)
            v.e[i] = elem_conj(v.e[i], conj);
        if (at.is_there)
            *(__local RealsG *)(tile + at.across * ld_tile + at.along) = v.whole;
    }
}

// The slices of an entry from p0 on.  a, b: the macro-tile's first elements in the first entry.  Beyond
// the last entry of a stack is that one again, which is not stored.
INLINE void read_slices(VecG *next_a, VecG *next_b, const Gemm g, __global const ELEM *a,
                        __global const ELEM *b, long entry, long p0, int rows, int columns, int lane)
{
    const int depth = GUARD_K ? (int)min(g.k - p0, (long)KC) : KC;
    if (ENTRIES > 1)
        entry = min(entry, g.batch - 1);
    read_slice(next_a, a + entry * g.stride_a + p0 * (ALONG_K_A ? 1 : g.lda), g.lda, ALONG_K_A, MC,
               GUARD_M, rows, depth, lane);
    read_slice(next_b, b + entry * g.stride_b + p0 * (ALONG_K_B ? 1 : g.ldb), g.ldb, ALONG_K_B, NC,
               GUARD_N, columns, depth, lane);
}

// VK steps along k from step p on, of the work-item's rows or columns: tiles along k.
INLINE void read_along(ELEM *out, __local const ELEM *tile, int ld, int p, int count, int lane,
                       int lanes, int neighbours)
{
    UNROLL
    for (int x = 0; x < count; x++) {
        VecK v;
        v.whole = *(__local const VECTOR(VK) *)(tile + place(x, lane, lanes, neighbours) * ld + p);
        UNROLL
        for (int d = 0; d < VK; d++)
            out[d * count + x] = v.e[d];
    }
}

// Step p: p-major tiles.
INLINE void read_across(ELEM *out, __local const ELEM *tile, int ld, int p, int count, int lane,
                        int lanes)
{
    UNROLL
    for (int x = 0; x < count; x += V) {
        Vec v;
        v.whole = *(__local const VECTOR(V) *)(tile + p * ld + place(x, lane, lanes, V));
        UNROLL
        for (int i = 0; i < V; i++)
            out[x + i] = v.e[i];
    }
}

// acc += the product of the micro-tile's rows and columns of a slice.
INLINE void multiply(ELEM *acc, __local const ELEM *tile_a, __local const ELEM *tile_b, int depth,
                     int lane_m, int lane_n)
{
    _Pragma("unroll 1")  // registers are worth more: more work-groups run at a time
    for (int p = 0; p < depth; p += VK) {
        ELEM left[VK * MR], right[VK * NR];
        if (ALONG_K_A)
            read_along(left, tile_a, LD_A, p, MR, lane_m, LANES_M, V);
        if (ALONG_K_B)
            read_along(right, tile_b, LD_B, p, NR, lane_n, LANES_N, V_N);
        UNROLL
        for (int d = 0; d < VK; d++) {
            if (!ALONG_K_A)
                read_across(left + d * MR, tile_a, LD_A, p + d, MR, lane_m, LANES_M);
            if (!ALONG_K_B)
                read_across(right + d * NR, tile_b, LD_B, p + d, NR, lane_n, LANES_N);
            add_product(acc, left + d * MR, right + d * NR);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void batched(GEMM_ARGS)
{
    __local ELEM tiles_a[ENTRIES * TILE_A] __attribute__((aligned(64)));
    __local ELEM tiles_b[ENTRIES * TILE_B] __attribute__((aligned(64)));
    const int item = get_local_id(0), lane = item % SHARE, own = item / SHARE;
    const int lane_m = lane % LANES_M, lane_n = lane / LANES_M;
#if GROUPS
    asm volatile("//@@.minnctapersm " TEXT(GROUPS) ::: "memory");
#endif
    __local ELEM *tile_a = tiles_a + own * TILE_A, *tile_b = tiles_b + own * TILE_B;

#if TILED
    const int tile = get_group_id(1), tiles_m = (g.m + MC - 1) / MC;
    const long i0 = tile % tiles_m * (long)MC, j0 = tile / tiles_m * (long)NC;
#else
    const long i0 = 0, j0 = 0;
#endif
    const int rows = GUARD_M ? (int)min(g.m - i0, (long)MC) : MC;
    const int columns = GUARD_N ? (int)min(g.n - j0, (long)NC) : NC;
    a += g.offset_a + i0 * (ALONG_K_A ? g.lda : 1);
    b += g.offset_b + j0 * (ALONG_K_B ? g.ldb : 1);
    c += g.offset_c + i0 + j0 * g.ldc;

    VecG next_a[TURNS(MC)], next_b[TURNS(NC)];
    long entry = get_group_id(0) * (long)ENTRIES + own;
    const long step = get_num_groups(0) * (long)ENTRIES;
    if (AHEAD)
        read_slices(next_a, next_b, g, a, b, entry, 0, rows, columns, lane);
    for (; entry - own < g.batch; entry += step) {
        ELEM acc[NR * MR];
        UNROLL
        for (int x = 0; x < NR * MR; x++)
            acc[x] = (ELEM)(0);
        for (long p0 = 0; p0 < g.k; p0 += KC) {
            if (!AHEAD)
                read_slices(next_a, next_b, g, a, b, entry, p0, rows, columns, lane);
            barrier(CLK_LOCAL_MEM_FENCE);  // the slice before has been multiplied
            write_slice(tile_a, next_a, ALONG_K_A, MC, g.conj_a, lane);
            write_slice(tile_b, next_b, ALONG_K_B, NC, g.conj_b, lane);
            barrier(CLK_LOCAL_MEM_FENCE);
            const int is_last = p0 + KC >= g.k;
            const long next = is_last ? entry + step : entry;
            if (AHEAD && next < g.batch)
                read_slices(next_a, next_b, g, a, b, next, is_last ? 0 : p0 + KC, rows, columns,
                            lane);
            multiply(acc, tile_a, tile_b, GUARD_K ? (int)min(g.k - p0, (long)KC) : KC, lane_m,
                     lane_n);
        }
        if (entry < g.batch)
            store(acc, g, alpha, beta, c + entry * g.stride_c, rows, columns, lane_m, lane_n);
    }
}
