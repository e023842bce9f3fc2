// nv_wgmma, first kernel: digits (or halves) of both operands, in the order of nv_wgmma/types.cl.
//
// A work-group packs a block of 64 rows and one slice.  Where k is contiguous a work-item takes 16
// bytes of each plane from neighbours along k; otherwise blocks of 4 rows and WORD elements of k are
// turned in registers, and words of k exchanged through local memory.

#define PACK_ROWS 64
#define CHUNK (WORD * 4)  // elements of k in 16 bytes

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

// `count` neighbours, of which `there` are inside; 16-byte reads where they may be.
INLINE void read_row(INTEGER *to, const int count, __global const INTEGER *x, int there, int wide)
{
    if (wide && there >= count) {
        UNROLL
        for (int u = 0; u < count * BITS / 128; u++) {
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

INLINE void pack_along_k(__global const INTEGER *x, long ld, int rows, int depth, int turns,
                         __global uchar *to, long plane_bytes)
{
    const int wide = ((ulong)x & 15) == 0 && ld % RUN == 0;
    UNROLL
    for (int h = 0; h < PACK_ROWS / 32; h++) {
        const int row = get_local_id(0) / 8 + 32 * h, chunk = get_local_id(0) % 8;
        INTEGER e[CHUNK];
        read_row(e, CHUNK, x + row * ld + chunk * CHUNK, row < rows ? depth - chunk * CHUNK : 0, wide);
        UNROLL
        for (int i = 0; i < CHUNK; i++)
            e[i] = DIGITS(e[i]);
        const int place = turns ? place_of(row) : row;
        __global uchar *at = to + place * ROW_BYTES + (chunk ^ place % 8) * 16;
        UNROLL
        for (int plane = 0; plane < PLANES; plane++, at += plane_bytes) {
            uint w[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                w[i] = word_of(e + i * WORD, plane);
            *(__global uint4 *)at = (uint4)(w[0], w[1], w[2], w[3]);
        }
    }
}

// Where word w of k of a row lies in local memory: no two lanes of a warp meet in a bank.
#define WORD_AT(row, w) ((row) * 32 + ((w) ^ (row) / 4 * 2 ^ (row) % 4))

INLINE void pack_across(__global const INTEGER *x, long ld, int rows, int depth, int turns,
                        __global uchar *to, long plane_bytes, __local uint *words)
{
    typedef CAT(CAT(UINT_, BITS), 4) INTEGER4;
    const int wide = ((ulong)x & (4 * sizeof(INTEGER) - 1)) == 0 && ld % 4 == 0 && rows >= PACK_ROWS;
    UNROLL
    for (int h = 0; h < 2; h++) {
        const int row = get_local_id(0) % 16 * 4, w = get_local_id(0) / 16 + 16 * h;
        INTEGER e[4][WORD];
        UNROLL
        for (int p = 0; p < WORD; p++) {
            const int k = w * WORD + p;
            __global const INTEGER *from = x + row + k * ld;
            if (wide && k < depth) {
                const INTEGER4 v = *(__global const INTEGER4 *)from;
                e[0][p] = DIGITS(v.x);
                e[1][p] = DIGITS(v.y);
                e[2][p] = DIGITS(v.z);
                e[3][p] = DIGITS(v.w);
            } else {
                UNROLL
                for (int i = 0; i < 4; i++)
                    e[i][p] = k < depth && row + i < rows ? DIGITS(from[i]) : (INTEGER)0;
            }
        }
        UNROLL
        for (int plane = 0; plane < PLANES; plane++)
            UNROLL
            for (int i = 0; i < 4; i++)
                words[plane * (PACK_ROWS * 32) + WORD_AT(row + i, w)] = word_of(e[i], plane);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (int h = 0; h < PACK_ROWS / 32; h++) {
        const int row = get_local_id(0) / 8 + 32 * h, chunk = get_local_id(0) % 8;
        const int place = turns ? place_of(row) : row;
        __global uchar *at = to + place * ROW_BYTES + (chunk ^ place % 8) * 16;
        UNROLL
        for (int plane = 0; plane < PLANES; plane++, at += plane_bytes) {
            uint w[4];
            UNROLL
            for (int i = 0; i < 4; i++)
                w[i] = words[plane * (PACK_ROWS * 32) + WORD_AT(row, chunk * 4 + i)];
            *(__global uint4 *)at = (uint4)(w[0], w[1], w[2], w[3]);
        }
    }
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void nv_wgmma_pack(WGMMA_ARGS)
{
    __local uint words[PLANES * PACK_ROWS * 32];
    const int blocks_x = s.strips_x * (BX / PACK_ROWS), blocks_y = s.strips_y * (BY / PACK_ROWS);
    long group = get_group_id(0);
    const long slice = group % s.slices;
    group /= s.slices;
    const int is_y = group >= (long)blocks_x * s.copies_x;
    group -= is_y ? (long)blocks_x * s.copies_x : 0;
    const int blocks = is_y ? blocks_y : blocks_x, tall = is_y ? BY : BX;
    const long copy = group / blocks, row = group % blocks * PACK_ROWS;
    const long strips = is_y ? s.strips_y : s.strips_x;
    const long k = slice * DEPTH, ld = is_y ? g.lda : g.ldb;
    const int along_k = is_y ? g.trans_a : !g.trans_b;
    __global const INTEGER *x =
        is_y ? a + g.offset_a + copy * g.stride_a : b + g.offset_b + copy * g.stride_b;
    x += along_k ? row * ld + k : row + k * ld;
    const int rows = (int)clamp((is_y ? g.m : g.n) - row, 0L, (long)PACK_ROWS);
    const int depth = (int)min(g.k - k, (long)DEPTH);

    const long plane_bytes = strips * s.slices * tall * ROW_BYTES;
    __global uchar *to = scratch + (is_y ? s.at_y : 0) + copy * PLANES * plane_bytes +
                         ((row / tall * s.slices + slice) * tall + row % tall) * ROW_BYTES;
    if (along_k)
        pack_along_k(x, ld, rows, depth, is_y, to, plane_bytes);
    else
        pack_across(x, ld, rows, depth, is_y, to, plane_bytes, words);
}
