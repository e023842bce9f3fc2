// nv_wgmma, first kernel: digits (or halves) of both operands, in the order of nv_wgmma/types.cl.
//
// A work-group packs a block of 64 rows and PACK_SLICES slices.  Where k is contiguous a work-item takes
// 16 bytes of each plane from neighbours along k; otherwise blocks of SIDE rows and WORD elements of k
// are turned in registers, and words of k exchanged through local memory.  All that a work-item reads is
// on its way before it writes.

#define PACK_ROWS 64
#ifndef PACK_SLICES
#define PACK_SLICES 1  // of each work-group; of bytes two, since a block has 16 rows
#endif
#define CHUNK (WORD * 4)  // elements of k in 16 bytes
#define SIDE (BITS <= 32 ? RUN : 4)
#define CHUNKS (PACK_ROWS * PACK_SLICES * 8 / 256)       // of a work-item
#define BLOCKS (PACK_ROWS * PACK_SLICES * 32 / SIDE / 256)
#define SLICE_WORDS (PACK_ROWS * 32)

// Signed digits d of x are those bytes for which x = d0 + 2^8 d1 + ...: with 128 in each digit's place
// added, carries and all, they are plain bytes, each 128 too large.
#define BALANCE ((INTEGER)0x8080808080808080UL)
#if IS_HALF
#define DIGITS(x) (x)
#elif IS_BOOL
#define DIGITS(x) ((INTEGER)((x) != 0))
#else
#define DIGITS(x) ((INTEGER)(((INTEGER)((x) + BALANCE)) ^ BALANCE))
#endif

// WORD digits of a plane, from as many elements of k.
INLINE uint word_of(const INTEGER *x, const int plane)
{
#if IS_HALF
    return (uint)x[0] | (uint)x[1] << 16;
#else
    uint word = 0;
    UNROLL
    for (int p = 0; p < 4; p++)
        word |= (uint)(uchar)(x[p] >> (8 * plane)) << (8 * p);
    return word;
#endif
}

// Where row r of a block of Y lies in it: see types.cl.
INLINE int place_of(int r)
{
    const int in = r % (4 * RUN), at = in % RUN;
    return r - in + at / 2 * 8 + in / RUN * 2 + at % 2;
}

// SIDE or CHUNK neighbours, of which `there` are inside; by reads of 16 bytes if all may be read so.
INLINE void read_row(INTEGER *to, const int count, __global const INTEGER *x, int there, int wide)
{
    if (wide) {
        UNROLL
        for (int u = 0; u < count / RUN; u++) {
            union {
                uint4 whole;
                INTEGER e[RUN];
            } v;
            v.whole = *(__global const uint4 *)(x + u * RUN);
            UNROLL
            for (int e = 0; e < RUN; e++)
                to[u * RUN + e] = v.e[e];
        }
    } else {
        UNROLL
        for (int e = 0; e < count; e++)
            to[e] = e < there ? x[e] : (INTEGER)0;
    }
}

// What a work-group packs: rows and elements of k that are inside, and where it begins.
typedef struct {
    __global const INTEGER *x;
    long ld;
    int rows, depth;
    int wide;   // whole, and all vectors start on 16 bytes
    int is_y;
    int slices; // that are there
    __global uchar *to;
    long slice_bytes, plane_bytes;
} Block;

INLINE __global uchar *chunk_at(const Block *b, int row, int slice, int chunk)
{
    const int place = b->is_y ? place_of(row) : row;
    return b->to + slice * b->slice_bytes + place * ROW_BYTES + (chunk ^ place % 8) * 16;
}

INLINE void pack_along_k(const Block *b)
{
    const int chunk = get_local_id(0) % 8;
    INTEGER e[CHUNKS][CHUNK];
    UNROLL
    for (int h = 0; h < CHUNKS; h++) {
        const int at = get_local_id(0) / 8 + 32 * h, row = at % PACK_ROWS;
        const int k = at / PACK_ROWS * DEPTH + chunk * CHUNK;
        read_row(e[h], CHUNK, b->x + row * b->ld + k, row < b->rows ? b->depth - k : 0, b->wide);
    }
    UNROLL
    for (int h = 0; h < CHUNKS; h++) {
        const int at = get_local_id(0) / 8 + 32 * h;
        if (at / PACK_ROWS >= b->slices)
            continue;
        UNROLL
        for (int i = 0; i < CHUNK; i++)
            e[h][i] = DIGITS(e[h][i]);
        __global uchar *to = chunk_at(b, at % PACK_ROWS, at / PACK_ROWS, chunk);
        UNROLL
        for (int plane = 0; plane < PLANES; plane++, to += b->plane_bytes) {
            uint w[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                w[i] = word_of(e[h] + i * WORD, plane);
            *(__global uint4 *)to = (uint4)(w[0], w[1], w[2], w[3]);
        }
    }
}

// Where word w of k of a row lies in local memory: no two lanes of a warp meet in a bank.
#define WORD_AT(row, w) ((row) * 32 + ((w) ^ (row) / SIDE * (SIDE / 2) ^ (row) % 4))

INLINE void pack_across(const Block *b, __local uint *words)
{
    INTEGER e[BLOCKS][WORD][SIDE];
    UNROLL
    for (int h = 0; h < BLOCKS; h++) {
        const int at = get_local_id(0) + 256 * h;
        const int row = at % (PACK_ROWS / SIDE) * SIDE, w = at / (PACK_ROWS / SIDE);
        UNROLL
        for (int p = 0; p < WORD; p++) {
            const int k = w * WORD + p;
            read_row(e[h][p], SIDE, b->x + row + k * b->ld, k < b->depth ? b->rows - row : 0,
                     b->wide);
        }
    }
    UNROLL
    for (int h = 0; h < BLOCKS; h++) {
        const int at = get_local_id(0) + 256 * h;
        const int row = at % (PACK_ROWS / SIDE) * SIDE, w = at / (PACK_ROWS / SIDE);
        __local uint *to = words + w / 32 * (PLANES * SLICE_WORDS);
        UNROLL
        for (int i = 0; i < SIDE; i++) {
            INTEGER turned[WORD];
            UNROLL
            for (int p = 0; p < WORD; p++)
                turned[p] = DIGITS(e[h][p][i]);
            UNROLL
            for (int plane = 0; plane < PLANES; plane++)
                to[plane * SLICE_WORDS + WORD_AT(row + i, w % 32)] = word_of(turned, plane);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int chunk = get_local_id(0) % 8;
    UNROLL
    for (int h = 0; h < CHUNKS; h++) {
        const int at = get_local_id(0) / 8 + 32 * h, row = at % PACK_ROWS, slice = at / PACK_ROWS;
        if (slice >= b->slices)
            continue;
        __local const uint *from = words + slice * (PLANES * SLICE_WORDS);
        __global uchar *to = chunk_at(b, row, slice, chunk);
        UNROLL
        for (int plane = 0; plane < PLANES; plane++, to += b->plane_bytes) {
            uint w[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                w[i] = from[plane * SLICE_WORDS + WORD_AT(row, chunk * 4 + i)];
            *(__global uint4 *)to = (uint4)(w[0], w[1], w[2], w[3]);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void nv_wgmma_pack(WGMMA_ARGS)
{
    __local uint words[PACK_SLICES * PLANES * SLICE_WORDS];
    const int blocks_x = s.strips_x * (BX / PACK_ROWS), blocks_y = s.strips_y * (BY / PACK_ROWS);
    const int runs = (s.slices + PACK_SLICES - 1) / PACK_SLICES;
    int group = get_group_id(0);
    Block w;
    w.is_y = group >= blocks_x * runs * s.copies_x;
    group -= w.is_y ? blocks_x * runs * s.copies_x : 0;
    const int blocks = w.is_y ? blocks_y : blocks_x, tall = w.is_y ? BY : BX;
    const int along_k = w.is_y ? g.trans_a : !g.trans_b;
    const int copy = group / (blocks * runs);
    group %= blocks * runs;
    // Neighbours read neighbours.
    const int slice = (along_k ? group % runs : group / blocks) * PACK_SLICES;
    const long row = (along_k ? group / runs : group % blocks) * PACK_ROWS;
    const long k = (long)slice * DEPTH;
    w.ld = w.is_y ? g.lda : g.ldb;
    w.x = w.is_y ? a + g.offset_a + copy * g.stride_a : b + g.offset_b + copy * g.stride_b;
    w.x += along_k ? row * w.ld + k : row + k * w.ld;
    w.rows = (int)clamp((w.is_y ? g.m : g.n) - row, 0L, (long)PACK_ROWS);
    w.depth = (int)min(g.k - k, (long)(PACK_SLICES * DEPTH));
    w.slices = min(s.slices - slice, PACK_SLICES);
    w.wide = ((ulong)w.x & 15) == 0 && w.ld % RUN == 0 && w.rows == PACK_ROWS &&
             w.depth == PACK_SLICES * DEPTH;
    w.slice_bytes = tall * ROW_BYTES;
    w.plane_bytes = (w.is_y ? s.strips_y : s.strips_x) * s.slices * w.slice_bytes;
    w.to = scratch + (w.is_y ? s.at_y : 0) + copy * PLANES * w.plane_bytes +
           (row / tall * s.slices + slice) * w.slice_bytes + row % tall * ROW_BYTES;
    if (along_k)
        pack_along_k(&w);
    else
        pack_across(&w, words);
}
