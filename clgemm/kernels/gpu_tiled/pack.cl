// gpu_tile_pack: op(A) and op(B) as panels in scratch memory, for gpu_tiled with PACKED = 1.
//
// A panel belongs to a macro-tile's rows of op(A), or columns of op(B), and holds its slices in order:
//
//      panel:  | slice 0 | slice 1 | ...        slice:  p=0: x0 x1 .. x(W-1), p=1: ...   (W = MC or NC)
//
// A slice is a p-major tile without padding, so packing one is what gpu_tiled does with one, but that
// the tile goes to memory.  Transposition, conjugation, odd sizes and leading dimensions end here.
// A work-group packs one slice; those of A come first.

// The tile that `next` was kept in, without its padding.
INLINE void unload(__global ELEM *to, __local const ELEM *tile, int ld, int width)
{
    for (int e = get_local_id(0); e < width * KC; e += ITEMS)
        to[e] = tile[e / width * ld + e % width];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void gpu_tile_pack(GEMM_ARGS, __global ELEM *scratch, const long at_b)
{
    __local ELEM tile[KC * ((MC > NC ? MC : NC) + PAD)] __attribute__((aligned(64)));
    const int tiles_m = (g.m + MC - 1) / MC, tiles_n = (g.n + NC - 1) / NC;
    const int slices = (g.k + KC - 1) / KC;
    const long slices_a = (long)(g.stride_a ? g.batch : 1) * tiles_m * slices;
    long number = get_group_id(0);  // of the slice, those of a panel after each other
    if (number < slices_a) {
        const long panel = number / slices, entry = panel / tiles_m;
        const int at = panel % tiles_m * MC, p = number % slices * KC;
        const int last = LAST(min((int)g.m - at, MC), ALONG_K_A);
        a += g.offset_a + entry * g.stride_a + at * (ALONG_K_A ? g.lda : 1);
        VecG next[VEC_A];
        fetch(next, VEC_A, MC, a + p * (ALONG_K_A ? 1 : g.lda), g.lda, ALONG_K_A, last, g.k - p, 1);
        keep(tile, MC + PAD, 0, next, VEC_A, MC, ALONG_K_A, g.conj_a);
        barrier(CLK_LOCAL_MEM_FENCE);
        unload(scratch + number * (MC * KC), tile, MC + PAD, MC);
    } else {
        number -= slices_a;
        const long panel = number / slices, entry = panel / tiles_n;
        const int at = panel % tiles_n * NC, p = number % slices * KC;
        const int last = LAST(min((int)g.n - at, NC), ALONG_K_B);
        b += g.offset_b + entry * g.stride_b + at * (ALONG_K_B ? g.ldb : 1);
        VecG next[VEC_B];
        fetch(next, VEC_B, NC, b + p * (ALONG_K_B ? 1 : g.ldb), g.ldb, ALONG_K_B, last, g.k - p, 1);
        keep(tile, NC + PAD, 0, next, VEC_B, NC, ALONG_K_B, g.conj_b);
        barrier(CLK_LOCAL_MEM_FENCE);
        unload(scratch + at_b + number * (NC * KC), tile, NC + PAD, NC);
    }
}
