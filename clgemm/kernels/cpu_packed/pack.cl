// Packing for CPUs: blocks of A and B become micro-panels that the micro-kernel reads front to back.
//
// A panel is W elements wide (W = MR for A, NR for B) and kc deep; what lies beyond the matrix is
// zero:
//
//      panel:  | p=0: x0 x1 .. x(W-1) | p=1: x0 x1 .. x(W-1) | ...

#define AHEAD 6  // columns of A between the one that is packed and the one that is fetched

// A panel of which w < W columns are filled; see pack_block.
INLINE void pack_edge(int W, int w, int kc, __global const ELEM *x, long ld, int along_k,
                      __global ELEM *panel)
{
    for (int p = 0; p < kc; p++)
        for (int i = w; i < W; i++)
            panel[(long)p * W + i] = (ELEM)(0);
    if (along_k) {
        for (int i = 0; i < w; i++)
            for (int p = 0; p < kc; p++)
                panel[(long)p * W + i] = x[i * ld + p];
    } else {
        for (int p = 0; p < kc; p++)
            for (int i = 0; i < w; i++)
                panel[(long)p * W + i] = x[i + p * ld];
    }
}

// One row of a full panel whose source is contiguous along the panel's width.
INLINE void pack_row(int W, __global const ELEM *x, __global ELEM *row)
{
    UNROLL
    for (int i = 0; i < W; i++)
        row[i] = x[i];
}

typedef VECTOR(4) ELEM4;
#define VLOAD4 CAT(vload, CAT(REALS_, 4))
#define STORE4(x, p) CAT(vstore, CAT(REALS_, 4))(x, 0, (__global REAL *)(p))
#define ROW4(part) (ELEM4)(r0.part, r1.part, r2.part, r3.part)
// Four columns of four elements each, as rows that lie ld apart.
INLINE void store_turned(ELEM4 r0, ELEM4 r1, ELEM4 r2, ELEM4 r3, __global ELEM *to, long ld)
{
#if IS_COMPLEX
    STORE4(ROW4(s01), to);
    STORE4(ROW4(s23), to + ld);
    STORE4(ROW4(s45), to + 2 * ld);
    STORE4(ROW4(s67), to + 3 * ld);
#else
    STORE4(ROW4(s0), to);
    STORE4(ROW4(s1), to + ld);
    STORE4(ROW4(s2), to + 2 * ld);
    STORE4(ROW4(s3), to + 3 * ld);
#endif
}

// A block of 4 x 4 with columns ld apart, transposed in registers.
#define LOAD4(p) VLOAD4(0, (__global const REAL *)(p))
INLINE void turn(__global const ELEM *x, long ld, __global ELEM *to, long ld_to)
{
    store_turned(LOAD4(x), LOAD4(x + ld), LOAD4(x + 2 * ld), LOAD4(x + 3 * ld), to, ld_to);
}

// A full panel whose source is contiguous along k: 4 x 4 blocks are transposed in registers.
INLINE void pack_turned(int W, int kc, __global const ELEM *x, long ld, __global ELEM *panel)
{
    int p = 0;
    for (; p + 4 <= kc; p += 4) {
        UNROLL
        for (int i = 0; i + 4 <= W; i += 4)
            turn(x + p + i * ld, ld, panel + (long)p * W + i, W);
        for (int i = W / 4 * 4; i < W; i++)
            for (int u = 0; u < 4; u++)
                panel[(long)(p + u) * W + i] = x[p + u + i * ld];
    }
    for (; p < kc; p++)
        for (int i = 0; i < W; i++)
            panel[(long)p * W + i] = x[p + i * ld];
}

// A block of `count` columns and kc rows into consecutive panels of W.  `along_k`: the source is
// contiguous along k and `ld` steps from panel column to panel column; else the other way round.
INLINE void pack_block(int W, int count, int kc, __global const ELEM *x, long ld, int along_k,
                       __global ELEM *panels)
{
    const int full = count / W * W;
    if (along_k) {
        for (int i = 0; i < full; i += W)
            pack_turned(W, kc, x + i * ld, ld, panels + (long)i * kc);
    } else {
        // k outermost: whole columns of the source are read in order, twice as fast as panel by panel.
        for (int p = 0; p < kc; p++) {
#if CLANG_BUILTINS
            for (int u = 0; u < full * (int)sizeof(ELEM); u += 64)
                __builtin_prefetch((const void *)((ulong)(x + (p + AHEAD) * ld) + u), 0, 3);
#endif
            for (int i = 0; i < full; i += W)
                pack_row(W, x + i + p * ld, panels + (long)i * kc + (long)p * W);
        }
    }
    if (full < count)
        pack_edge(W, count - full, kc, x + (along_k ? full * ld : (long)full), ld, along_k,
                  panels + (long)full * kc);
}
