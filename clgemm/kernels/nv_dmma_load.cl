// nv_dmma: slices into local memory without packing, fragments out of it, and the product itself.

#ifndef WM
#define WM 32  // rows of a warp's tile
#endif
#ifndef WN
#define WN 32  // columns of a warp's tile
#endif
#ifndef PARTS
#define PARTS 0  // 1: K is split; what is stored are partial products, into scratch
#endif
#ifndef MMA_ROWS
#define MMA_ROWS 16  // 16: shapes of compute capability 9.0; 8: those of 8.0
#endif

#define WARPS_M (MC / WM)
#define WARPS_N (NC / WN)
#define WARPS (WARPS_M * WARPS_N)
#define ITEMS (32 * WARPS)
#define STEPS (KC * CE / 4)  // of depth 4, in a slice
#define PARTS_OF_FILL (STEPS - 1)

// A work-item starts each ITEMS-th copy of a slice, of 16 bytes where WIDE_x is set, else of 8.  Copy
// number n moves this chunk: where memory runs along the depth the second four of eight lanes go to
// the next unit along the depth, so that together they read 128 bytes in a row.
#define COPIES_OF_CHUNK(wide) ((wide) ? 1 : 2)
#define COPIES(width, wide) (CHUNKS(width) * COPIES_OF_CHUNK(wide) / ITEMS)  // of a work-item

INLINE int chunk_of(int n, int width, int kind, int turned, int wide)
{
    const int c = n / COPIES_OF_CHUNK(wide);
    const int row = width / UNIT_WIDTH(kind) * UNIT_CHUNKS(kind);  // chunks of 8 of the depth
    return turned ? c % 4 + c / 4 % 2 * row + c / 8 % (row / 4) * 4 + c / (2 * row) * (2 * row) : c;
}

// Where copy n begins: elements along the width and the depth, bytes in the slice.  Since all sizes
// are powers of two, the place of n = item + i * ITEMS is the sum of the places of the two terms, and
// only the first depends on the work-item.
INLINE int copy_w(int n, int width, int kind, int turned, int wide)
{
    return chunk_w(chunk_of(n, width, kind, turned, wide), width, kind, turned) +
           (kind == ALONG_W ? n % COPIES_OF_CHUNK(wide) : 0);
}

INLINE int copy_p(int n, int width, int kind, int turned, int wide)
{
    return chunk_p(chunk_of(n, width, kind, turned, wide), width, kind, turned) +
           (kind == ALONG_P ? n % COPIES_OF_CHUNK(wide) : 0);
}

INLINE int copy_at(int n, int width, int kind, int turned, int wide)
{
    return chunk_of(n, width, kind, turned, wide) * 16 + n % COPIES_OF_CHUNK(wide) * 8;
}

// Start one part of PARTS_OF_FILL of a work-item's copies of a slice.  `to` and `from` are its first
// copy's addresses, w_end and p_end count from there; what lies beyond them becomes zero.
INLINE void copy_part(uint to, __global const ELEM *from, long ld, int width, int kind, int turned,
                      int wide, int w_end, int p_end, int part)
{
    const int bytes = 16 / COPIES_OF_CHUNK(wide), copies = COPIES(width, wide);
    UNROLL
    for (int i = 0; i < copies; i++)
        if (i * PARTS_OF_FILL / copies == part) {
            const int w = copy_w(i * ITEMS, width, kind, turned, wide);
            const int p = copy_p(i * ITEMS, width, kind, turned, wide);
            const uint at = to + copy_at(i * ITEMS, width, kind, turned, wide);
            const int along = kind == ALONG_P ? p_end - p : w_end - w;
            const int across = kind == ALONG_P ? w_end - w : p_end - p;
            const int valid = across > 0 ? min(max(along, 0) * 8 * CE, bytes) : 0;
            __global const ELEM *x = from + (turned ? p + w * ld : w + p * ld);
            if (wide)
                async_copy16(at, x, valid);
            else
                async_copy8(at, x, valid);
        }
}

// A fragment's chunks serve one step of depth 4 (ALONG_W) or two.
#define STEPS_OF(kind) ((kind) == ALONG_W ? 1 : 2)
#define HALVES_OF(kind) ((kind) == ALONG_P ? 2 : 1)

// Change the sign of `x` if `flip`; a product would cost a slot of the arithmetic units.
INLINE double signed_as(double x, int flip)
{
    return flip ? as_double(as_ulong(x) ^ 0x8000000000000000ul) : x;
}

// The pair of numbers along the width that step s takes out of the chunks of a real operand, or of
// B: two rows (columns) of one depth.
INLINE double2 pair_of(const double2 *chunk, int s, int kind)
{
    if (kind == ALONG_W)
        return chunk[0];
    return s % 2 ? (double2)(chunk[0].y, chunk[1].y) : (double2)(chunk[0].x, chunk[1].x);
}

// The same for a complex A: rows (re, im) of C take A's (re, im) times B's re, then (-im, re) times
// B's im.  Every sign that conjugation brings is applied here.
INLINE double2 complex_pair_of(double2 element, int s, int conj_a, int conj_b)
{
    return s % 2 ? (double2)(signed_as(element.y, conj_a == conj_b), signed_as(element.x, conj_b))
                 : (double2)(element.x, signed_as(element.y, conj_a));
}

// acc += rows x columns, 16 x 4 by 4 x 8.  `rows` are rows 2g and 2g + 1 of C and `column` one of its
// columns, or the other way round.  acc[0] and acc[1] are the first row with the columns of g = 2q and
// 2q + 1, acc[2] and acc[3] the second row with the same.
INLINE void multiply_add(double *acc, double2 rows, double column)
{
#if MMA_ROWS == 16
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
                 : "d"(rows.x), "d"(rows.y), "d"(column));
#else
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(acc[0]), "+d"(acc[1])
                 : "d"(rows.x), "d"(column));
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(acc[2]), "+d"(acc[3])
                 : "d"(rows.y), "d"(column));
#endif
}
