// Packing for CPUs: blocks of A and B become micro-panels that the micro-kernel reads front to back.
//
// A panel is W elements wide (W = MR for A, NR for B) and kc deep; what lies beyond the matrix is
// zero.  Real:
//
//      panel:  | p=0: x0 x1 .. x(W-1) | p=1: x0 x1 .. x(W-1) | ...
//
// Complex panels of A keep real and imaginary parts apart (PLANAR), so that the micro-kernel sees real
// vectors; panels of B keep pairs, since their elements are broadcast one by one:
//
//      A:      | p=0: re0 re1 .. re(MR-1)  im0 im1 .. im(MR-1) | p=1: ...
//      B:      | p=0: re0 im0 re1 im1 .. re(NR-1) im(NR-1)     | p=1: ...
//
// Conjugation is a sign, applied here, so the micro-kernel knows nothing of it.

#define AHEAD 6  // columns of A between the one that is packed and the one that is fetched

#define PLANAR IS_COMPLEX
#define PAIRS 0

// One element to row p, column i of a panel that is W wide.
INLINE void panel_put(__global REAL *panel, int W, int planar, int p, int i, ELEM x)
{
#if IS_COMPLEX
    __global REAL *row = panel + (long)p * 2 * W;
    row[planar ? i : 2 * i] = x.x;
    row[planar ? W + i : 2 * i + 1] = x.y;
#else
    panel[(long)p * W + i] = x;
#endif
}

// Any block, w <= W columns of the panel filled; (i, p) of the source at i * si + p * sp.
INLINE void pack_edge(int W, int planar, int w, int kc, __global const ELEM *x, long si,
                      long sp, int conj, __global REAL *panel)
{
    for (int p = 0; p < kc; p++) {
        for (int i = 0; i < w; i++)
            panel_put(panel, W, planar, p, i, elem_conj(x[i * si + p * sp], conj));
        for (int i = w; i < W; i++)
            panel_put(panel, W, planar, p, i, (ELEM)(0));
    }
}

// One row of a full panel whose source is contiguous along the panel's width.
INLINE void pack_row(int W, int planar, __global const ELEM *x, int conj,
                     __global REAL *row)
{
    UNROLL
    for (int i = 0; i < W; i++)
        panel_put(row, W, planar, 0, i, elem_conj(x[i], conj));
}

#if !IS_COMPLEX
// A block of 4 x 4 with columns ld apart, transposed in registers.
INLINE void turn(__global const REAL *x, long ld, __global REAL *to, long ld_to)
{
    typedef CAT(REAL, 4) REAL4;
    const REAL4 r0 = vload4(0, x), r1 = vload4(0, x + ld), r2 = vload4(0, x + 2 * ld),
                r3 = vload4(0, x + 3 * ld);
    vstore4((REAL4)(r0.s0, r1.s0, r2.s0, r3.s0), 0, to);
    vstore4((REAL4)(r0.s1, r1.s1, r2.s1, r3.s1), 0, to + ld_to);
    vstore4((REAL4)(r0.s2, r1.s2, r2.s2, r3.s2), 0, to + 2 * ld_to);
    vstore4((REAL4)(r0.s3, r1.s3, r2.s3, r3.s3), 0, to + 3 * ld_to);
}
#endif

// A full panel whose source is contiguous along k: 4 x 4 blocks are transposed in registers.
INLINE void pack_turned(int W, int planar, int kc, __global const ELEM *x, long ld,
                        int conj, __global REAL *panel)
{
    int p = 0;
    for (; p + 4 <= kc; p += 4) {
        UNROLL
        for (int i = 0; i + 4 <= W; i += 4) {
            __global const ELEM *s = x + p + i * ld;
#if IS_COMPLEX
            UNROLL
            for (int u = 0; u < 4; u++)
                UNROLL
                for (int v = 0; v < 4; v++)
                    panel_put(panel, W, planar, p + u, i + v, elem_conj(s[u + v * ld], conj));
#else
            turn(s, ld, panel + (long)p * W + i, W);
#endif
        }
        for (int i = W / 4 * 4; i < W; i++)
            for (int u = 0; u < 4; u++)
                panel_put(panel, W, planar, p + u, i, elem_conj(x[p + u + i * ld], conj));
    }
    for (; p < kc; p++)
        for (int i = 0; i < W; i++)
            panel_put(panel, W, planar, p, i, elem_conj(x[p + i * ld], conj));
}

// A block of `count` columns and kc rows into consecutive panels of W.  `along_k`: the source is
// contiguous along k and `ld` steps from panel column to panel column; else the other way round.
INLINE void pack_block(int W, int planar, int count, int kc, __global const ELEM *x, long ld,
                       int along_k, int conj, __global REAL *panels)
{
    const int full = count / W * W;
    if (along_k) {
        for (int i = 0; i < full; i += W)
            pack_turned(W, planar, kc, x + i * ld, ld, conj, panels + (long)i * kc * CE);
    } else {
        // k outermost: whole columns of the source are read in order, twice as fast as panel by panel.
        for (int p = 0; p < kc; p++) {
#if CLANG_BUILTINS
            for (int u = 0; u < full * (int)sizeof(ELEM); u += 64)
                __builtin_prefetch((const void *)((ulong)(x + (p + AHEAD) * ld) + u), 0, 3);
#endif
            for (int i = 0; i < full; i += W)
                pack_row(W, planar, x + i + p * ld, conj,
                         panels + (long)i * kc * CE + (long)p * W * CE);
        }
    }
    if (full < count)
        pack_edge(W, planar, count - full, kc, x + (along_k ? full * ld : (long)full),
                  along_k ? ld : 1, along_k ? 1 : ld, conj, panels + (long)full * kc * CE);
}
