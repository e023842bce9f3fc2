// nv_dmma: thin edges of C, right of and below what macro-tiles do.  Plain OpenCL C.
//
// They take few products but all of A and B, so what counts is how many loads are under way, in
// whole rows of memory.  A work-group does a strip: EDGE_WIDTH elements along the edge by up to
// EDGE_THICK across it.
//
//                 along the edge: x        across it: y       of depth p
//      right      rows of A                columns of B       A(w, p) B(p, v)
//      below      columns of B             rows of A
//
// Work-items load x and y of a chunk of the depth; y goes to local memory, for all to read.  While
// a chunk is multiplied the next one is on its way.  Where memory runs along the edge, a lane has
// one element of it and each warp a share of the depth; where memory runs along the depth, lanes
// share that and each warp has some elements.  In the end the shares are added up, always in the
// same order.

#ifndef EDGE_THICK
#define EDGE_THICK 0  // 0: there are no edges
#endif

#if EDGE_THICK
#define EDGE_WIDTH 32                             // elements along an edge
// Loads of x that a work-item has under way, as registers allow.
#define EDGE_LOADS ((EDGE_THICK * CE > 4 ? 16 : 32) / CE)
#define EDGE_WARPS (ITEMS / 32)
#define EDGE_MINE (EDGE_WIDTH / EDGE_WARPS)       // elements along the edge that a warp has
#define EDGE_DEPTH (EDGE_WARPS * EDGE_LOADS)      // of a chunk
#define EDGE_SHARE (EDGE_WIDTH * EDGE_THICK + 1)  // of sums; one more hits another bank
#define EDGE_ROOM (32 * EDGE_SHARE)               // elements of local memory, for y or all shares

// One operand of an edge: element (w, p) lies at x + w * step_w + p * step_p.
typedef struct {
    __global const ELEM *x;
    long step_w, step_p;
    int conj;
} Side;

INLINE ELEM edge_element(Side side, int w, int p, int k)
{
    return p < k ? elem_conj(side.x[w * side.step_w + p * side.step_p], side.conj) : (ELEM)(0);
}

// Load what this work-item has of the chunk from depth p on, or zeros beyond k.  Elements beyond
// the edge's end are taken twice.
INLINE void edge_load(ELEM *x, ELEM *y, Side along, Side across, int is_along, int width, int thick,
                      int p, int k)
{
    const int item = get_local_id(0), lane = item % 32, warp = item / 32;
    UNROLL
    for (int i = 0; i < EDGE_LOADS; i++) {
        const int w = is_along ? lane : warp * EDGE_MINE + i % EDGE_MINE;
        const int at = is_along ? warp * EDGE_LOADS + i : i / EDGE_MINE * 32 + lane;
        x[i] = edge_element(along, min(w, width - 1), p + at, k);
    }
    UNROLL
    for (int v = 0; v < EDGE_THICK; v++)
        y[v] = item < EDGE_DEPTH ? edge_element(across, min(v, thick - 1), p + item, k) : (ELEM)(0);
}

// Do `width` elements along an edge, `thick` across it; they lie step_w and step_v apart in C.
INLINE void edge_strip(Side along, Side across, int is_along, int width, int thick, int k,
                       __local ELEM *room, __global ELEM *c, long step_w, long step_v, ELEM alpha,
                       ELEM beta)
{
    const int item = get_local_id(0), lane = item % 32, warp = item / 32;
    ELEM acc[EDGE_MINE][EDGE_THICK] = {{(ELEM)(0)}};
    ELEM x[EDGE_LOADS], next_x[EDGE_LOADS], y[EDGE_THICK];
    __local ELEM *chunk = room;  // and another one after it: they take turns
    edge_load(x, y, along, across, is_along, width, thick, 0, k);
    for (int p = 0; p < k; p += EDGE_DEPTH) {
        UNROLL
        for (int v = 0; v < EDGE_THICK; v++)
            if (item < EDGE_DEPTH)
                chunk[v * EDGE_DEPTH + item] = y[v];
        barrier(CLK_LOCAL_MEM_FENCE);
        edge_load(next_x, y, along, across, is_along, width, thick, p + EDGE_DEPTH, k);
        UNROLL
        for (int i = 0; i < EDGE_LOADS; i++) {
            const int mine = is_along ? 0 : i % EDGE_MINE;
            const int at = is_along ? warp * EDGE_LOADS + i : i / EDGE_MINE * 32 + lane;
            UNROLL
            for (int v = 0; v < EDGE_THICK; v++)
                acc[mine][v] = elem_fma(x[i], chunk[v * EDGE_DEPTH + at], acc[mine][v]);
            x[i] = next_x[i];
        }
        chunk = chunk == room ? room + EDGE_DEPTH * EDGE_THICK : room;
    }
    barrier(CLK_LOCAL_MEM_FENCE);  // the last chunk was read
    UNROLL
    for (int i = 0; i < (is_along ? 1 : EDGE_MINE); i++)
        UNROLL
        for (int v = 0; v < EDGE_THICK; v++)
            room[(is_along ? warp : lane) * EDGE_SHARE + v * EDGE_WIDTH +
                 (is_along ? lane : warp * EDGE_MINE + i)] = acc[i][v];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < EDGE_WIDTH * EDGE_THICK; i += ITEMS) {
        const int w = i % EDGE_WIDTH, v = i / EDGE_WIDTH;
        if (w < width && v < thick) {
            ELEM sum = room[i];
            for (int share = 1; share < (is_along ? EDGE_WARPS : 32); share++)
                sum += room[share * EDGE_SHARE + i];
            elem_store(c + w * step_w + v * step_v, elem_mul(alpha, sum), beta, beta_class(beta));
        }
    }
}

// Strip number `strip` of a stack: those of the right edge, then those of the lower one, which has
// the corner.  Macro-tiles end at row main_m and column main_n.
INLINE void edge_strip_of(int strip, Gemm g, int main_m, int main_n, __local ELEM *room,
                          __global const ELEM *a, __global const ELEM *b, __global ELEM *c,
                          ELEM alpha, ELEM beta)
{
    const int m = g.m, n = g.n, k = g.k;
    const int right_rows = (main_m + EDGE_WIDTH - 1) / EDGE_WIDTH;
    const int below_columns = (n + EDGE_WIDTH - 1) / EDGE_WIDTH;
    const int right = right_rows * ((n - main_n + EDGE_THICK - 1) / EDGE_THICK);
    const int below = below_columns * ((m - main_m + EDGE_THICK - 1) / EDGE_THICK);
    const long entry = strip / (right + below);
    const int at = strip % (right + below), is_right = at < right;
    const int across = is_right ? at / right_rows : (at - right) / below_columns;
    const int along = is_right ? at % right_rows : (at - right) % below_columns;
    const int i = is_right ? along * EDGE_WIDTH : main_m + across * EDGE_THICK;
    const int j = is_right ? main_n + across * EDGE_THICK : along * EDGE_WIDTH;
    Side rows = {a + g.offset_a + entry * g.stride_a, TRANS_A ? g.lda : 1, TRANS_A ? 1 : g.lda,
                 g.conj_a};
    Side columns = {b + g.offset_b + entry * g.stride_b, TRANS_B ? 1 : g.ldb, TRANS_B ? g.ldb : 1,
                    g.conj_b};
    rows.x += i * rows.step_w;
    columns.x += j * columns.step_w;
    c += g.offset_c + entry * g.stride_c + i + j * g.ldc;
    if (is_right)
        edge_strip(rows, columns, !TRANS_A, main_m - i, n - j, k, room, c, 1, g.ldc, alpha, beta);
    else
        edge_strip(columns, rows, TRANS_B, n - j, m - i, k, room, c, g.ldc, 1, alpha, beta);
}
#endif
