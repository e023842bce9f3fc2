// Packing: blocks of A and B become panels of lanes that the micro-kernel reads front to back.
//
//      panel of width W:  | p=0: x0 x1 .. x(W-1) | p=1: x0 x1 .. x(W-1) | ...
//
// What lies beyond the matrix is zero.

#define AHEAD 6   // columns of A between the one that is packed and the one that is fetched
#define STREAMS 4  // rows that are read at once where k is contiguous

// One panel of which `w` columns are filled; (i, p) of the source at i * si + p * sp.
INLINE void pack_edge(int W, int w, int depth, __global const INTEGER *x, long si, long sp,
                      __global LANE *panel)
{
    for (int p = 0; p < depth; p++) {
        for (int i = 0; i < w; i++)
            panel[(long)p * W + i] = TO_LANE(x[i * si + p * sp]);
        for (int i = w; i < W; i++)
            panel[(long)p * W + i] = 0;
    }
}

// A full panel whose source is contiguous along k and `ld` apart from column to column.
INLINE void pack_along_k(int W, int depth, __global const INTEGER *x, long ld,
                         __global LANE *panel)
{
    for (int i = 0; i < W; i += STREAMS)
        for (int p = 0; p < depth; p++)
            UNROLL
            for (int u = 0; u < STREAMS; u++)
                panel[(long)p * W + i + u] = TO_LANE(x[(i + u) * ld + p]);
}

// `count` columns, `depth` deep, into consecutive panels of width W.
INLINE void pack_block(int W, int count, int depth, __global const INTEGER *x, long ld,
                       int along_k, __global LANE *panels)
{
    const int full = count / W * W;
    if (along_k) {
        for (int i = 0; i < full; i += W)
            pack_along_k(W, depth, x + i * ld, ld, panels + (long)i * depth);
    } else {
        // p outermost: whole columns of the source are read in order.
        for (int p = 0; p < depth; p++)
            for (int i = 0; i < full; i += W) {
                __global LANE *row = panels + (long)i * depth + (long)p * W;
                __global const INTEGER *from = x + i + p * ld;
#if CLANG_BUILTINS
                UNROLL
                for (int u = 0; u < W * BITS / 8; u += 64)
                    __builtin_prefetch((const void *)((ulong)(from + AHEAD * ld) + u), 0, 3);
#endif
                if (W % VW == 0) {
                    UNROLL
                    for (int v = 0; v < W; v += VW)
                        *(__global LANES *)(row + v) =
                            TO_LANES(*(__global const INTEGERS *)(from + v));
                } else {
                    UNROLL
                    for (int u = 0; u < W; u++)
                        row[u] = TO_LANE(from[u]);
                }
            }
    }
    if (full < count)
        pack_edge(W, count - full, depth, x + (along_k ? full * ld : (long)full),
                  along_k ? ld : 1, along_k ? 1 : ld, panels + (long)full * depth);
}
