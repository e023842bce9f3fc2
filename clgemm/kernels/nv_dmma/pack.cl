// nv_dmma: packs A and B into panels, so that the gemm kernel copies a slice by one instruction.
//
// A work-group packs a slice (the layout is drawn in nv_dmma/tiles.cl).  A work-item moves 2 x 2
// real numbers, or one element of a complex A: it reads what is neighbouring in memory and writes
// chunks.  Rows, columns and depth beyond the matrix become zeros; conjugation is done here.  Plain
// OpenCL C.

#define PACK_ITEMS 128  // work-items of a work-group

#if IS_COMPLEX
INLINE ELEM load_element(__global const ELEM *x, long ld, int turned, int conj, long w, long p,
                         long w_end, long p_end)
{
    if (w >= w_end || p >= p_end)
        return (ELEM)(0);
    return elem_conj(x[turned ? p + w * ld : w + p * ld], conj);
}

INLINE void pack_slice(__global ELEM *to, __global const ELEM *x, long ld, int width, int kind,
                       int turned, int wide, int conj, long w0, long p0, long w_end, long p_end)
{
    const int pairs = kind == ALONG_W;
    for (int i = get_local_id(0); i < CHUNKS(width) >> pairs; i += PACK_ITEMS) {
        const int c = pairs ? i / 32 * 64 + i % 32 : i;
        const long w = w0 + chunk_w(c, width, kind, turned);
        const long p = p0 + chunk_p(c, width, kind, turned);
        const ELEM u = load_element(x, ld, turned, conj, w, p, w_end, p_end);
        if (pairs) {
            const ELEM v = load_element(x, ld, turned, conj, w + 1, p, w_end, p_end);
            to[c] = (ELEM)(u.x, v.x);
            to[c + 32] = (ELEM)(u.y, v.y);
        } else {
            to[c] = u;
        }
    }
}
#else
typedef CAT(REAL, 2) Pair;

// Elements (fast, slow) and (fast + 1, slow); those beyond the ends are zero.
INLINE Pair load_pair(__global const REAL *x, long ld, long fast, long slow, long fast_end,
                      long slow_end, int wide)
{
    __global const REAL *p = x + fast + slow * ld;
    Pair v = (Pair)(0);
    if (slow < slow_end && fast + 1 < fast_end) {
        if (wide)
            v = *(__global const Pair *)p;
        else
            v = (Pair)(p[0], p[1]);
    } else if (slow < slow_end && fast < fast_end) {
        v.x = p[0];
    }
    return v;
}

INLINE void pack_slice(__global ELEM *to, __global const ELEM *x, long ld, int width, int kind,
                       int turned, int wide, int conj, long w0, long p0, long w_end, long p_end)
{
    __global Pair *chunks = (__global Pair *)to;
    for (int i = get_local_id(0); i < CHUNKS(width) / 2; i += PACK_ITEMS) {
        const int c = i / 32 * 64 + i % 32;  // and its other half, 32 further
        const long w = w0 + chunk_w(c, width, kind, turned);
        const long p = p0 + chunk_p(c, width, kind, turned);
        Pair u, v;
        if (turned) {
            const Pair s = load_pair(x, ld, p, w, p_end, w_end, wide);
            const Pair t = load_pair(x, ld, p, w + 1, p_end, w_end, wide);
            u = (Pair)(s.x, t.x);
            v = (Pair)(s.y, t.y);
        } else {
            u = load_pair(x, ld, w, p, w_end, p_end, wide);
            v = load_pair(x, ld, w, p + 1, w_end, p_end, wide);
        }
        chunks[c] = u;
        chunks[c + 32] = v;
    }
}
#endif

// Slices of A come first, then those of B; either may be missing.  packed_a and packed_b say where
// they go, in real numbers; slices_a is how many there are of A in all.
__kernel __attribute__((reqd_work_group_size(PACK_ITEMS, 1, 1)))
void nv_dmma_pack(GEMM_ARGS, __global REAL *scratch, const long packed_a, const long packed_b,
                  const long slices_a)
{
    const long slices = (g.k + KC - 1) / KC;
    long slice = get_group_id(0);
    if (slice < slices_a) {
        const long panels = (g.m + MC - 1) / MC, panel = slice / slices;
        __global ELEM *to = (__global ELEM *)(scratch + packed_a) + slice * (MC * KC);
        pack_slice(to, a + g.offset_a + panel / panels * g.stride_a, g.lda, MC, KIND_A, TRANS_A,
                   WIDE_A, g.conj_a, panel % panels * MC, slice % slices * KC, g.m, g.k);
    } else {
        slice -= slices_a;
        const long panels = (g.n + NC - 1) / NC, panel = slice / slices;
        __global ELEM *to = (__global ELEM *)(scratch + packed_b) + slice * (NC * KC);
        pack_slice(to, b + g.offset_b + panel / panels * g.stride_b, g.ldb, NC, KIND_B, !TRANS_B,
                   WIDE_B, g.conj_b, panel % panels * NC, slice % slices * KC, g.n, g.k);
    }
}
