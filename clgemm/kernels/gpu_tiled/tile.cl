// gpu_tile: how slices of op(A) and op(B) come into local memory; shared by gpu_tiled and its packing.
//
// A slice is KC deep and MC (A) or NC (B) wide.  In memory its elements lie in a row either along
// the width or along k, whatever the transposition; the ITEMS work-items of a group fetch it as vectors
// of VG elements along that row, and keep it as a tile in one of two layouts:
//
//      p-major:   KC rows of `width` elements (+ PAD)     a column of the macro-tile is one vector read
//      turned:    `width` rows of KC elements (+ PAD)     the transposed tile of Nugteren's kernel 5
//
// Nothing is read outside of a matrix.  Rows and columns beyond the edge of C repeat the last one: what
// is computed of them is never stored.  Elements beyond k are zero, in A and in B.

#ifndef MC
#define MC 64  // rows of the macro-tile
#endif
#ifndef NC
#define NC 64  // columns of the macro-tile
#endif
#ifndef KC
#define KC 8  // depth of a slice
#endif
#ifndef MR
#define MR 4  // rows of the micro-tile
#endif
#ifndef NR
#define NR 4  // columns of the micro-tile
#endif
#ifndef SLICED_K
#define SLICED_K 1  // shares of a work-group, each of which multiplies its part of every slice
#endif
#ifndef VG
#define VG 1  // vector width of global reads: divides extents, leading dimensions, offsets, strides
#endif
#ifndef PAD
#define PAD 4  // elements added to a row of a local tile: column writes would hit one bank
#endif
#ifndef LOCAL_A
#define LOCAL_A 1  // 0: A has no tile
#endif
#ifndef LOCAL_B
#define LOCAL_B 1
#endif
#ifndef TURN_A
#define TURN_A 0  // 1: the tile of A is kept turned
#endif
#ifndef TURN_B
#define TURN_B 0
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: op(A) is the transposed of what lies in memory
#endif
#ifndef TRANS_B
#define TRANS_B 0
#endif
#ifndef FAR
#define FAR 0  // 1: a slice spans more than 2^31 elements of memory
#endif

#define SHARE (MC / MR * (NC / NR))  // work-items that cover the macro-tile
#define ITEMS (SHARE * SLICED_K)
#define VEC_A (LOCAL_A ? MC * KC / VG / ITEMS : 1)  // vectors of A that a work-item moves a slice
#define VEC_B (LOCAL_B ? NC * KC / VG / ITEMS : 1)
#define LD_A ((TURN_A ? KC : MC) + PAD)  // elements of a row of a tile
#define LD_B ((TURN_B ? KC : NC) + PAD)
#define TILE_A (LOCAL_A ? (TURN_A ? MC : KC) * LD_A : 1)  // elements of a tile
#define TILE_B (LOCAL_B ? (TURN_B ? NC : KC) * LD_B : 1)
#define ALONG_K_A TRANS_A  // whether neighbours in memory are neighbours along k
#define ALONG_K_B (!TRANS_B)
// The start of the last vector of `count` rows or columns.
#define LAST(count, along_k) ((along_k) ? (count) - 1 : (count) - VG)

// VG elements, as one vector of reals and as an array.
typedef VECTOR(VG) RealsG;
typedef union {
    RealsG whole;
    ELEM e[VG];
} VecG;

#if FAR
typedef long Offset;
#else
typedef int Offset;
#endif

// Where vector number q of a slice starts, along the width and along k.
#define ALONG_W(q, width, along_k) ((along_k) ? (q) / (KC / VG) : (q) % ((width) / VG) * VG)
#define ALONG_P(q, width, along_k) ((along_k) ? (q) % (KC / VG) * VG : (q) / ((width) / VG))

// The work-item's vectors of a slice that starts at x.  `last`: the last vector's start along the
// width; `depth`: elements along k that there are, looked at if `guard`.
INLINE void fetch(VecG *next, int vectors, int width, __global const ELEM *x, Offset ld, int along_k,
                  int last, int depth, int guard)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        const int q = get_local_id(0) + u * ITEMS, p = ALONG_P(q, width, along_k);
        const int w = min((int)ALONG_W(q, width, along_k), last);
        if (!guard || p < depth)
            next[u].whole = *(__global const RealsG *)(x + (along_k ? p + w * ld : w + p * ld));
        else
            next[u].whole = (RealsG)(0);
    }
}

// The same of a packed slice, where vectors lie in their order.
INLINE void fetch_packed(VecG *next, int vectors, __global const ELEM *panel)
{
    UNROLL
    for (int u = 0; u < vectors; u++)
        next[u].whole = ((__global const RealsG *)panel)[get_local_id(0) + u * ITEMS];
}

// Vectors that were fetched, into a tile whose rows are `ld` elements long.
INLINE void keep(__local ELEM *tile, int ld, int turned, const VecG *next, int vectors, int width,
                 int along_k, int conj)
{
    UNROLL
    for (int u = 0; u < vectors; u++) {
        const int q = get_local_id(0) + u * ITEMS;
        const int w = ALONG_W(q, width, along_k), p = ALONG_P(q, width, along_k);
        __local ELEM *to = tile + (turned ? w * ld + p : p * ld + w);
        VecG v = next[u];
        UNROLL
        for (int i = 0; i < VG; i++)
            v.e[i] = elem_conj(v.e[i], conj);
        if (along_k == turned && ld % VG == 0) {
            *(__local RealsG *)to = v.whole;
        } else {
            UNROLL
            for (int i = 0; i < VG; i++)
                to[along_k == turned ? i : i * ld] = v.e[i];
        }
    }
}
