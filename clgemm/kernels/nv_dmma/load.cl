// nv_dmma: slices into local memory without packing, fragments out of it, and the product itself.

#ifndef WM
#define WM 32  // rows of a warp's tile
#endif
#ifndef WN
#define WN 32  // columns of a warp's tile
#endif
#ifndef WK
#define WK 1  // warps that share the depth of a slice
#endif
#ifndef PARTS
#define PARTS 0  // K is cut; 1: a part's products are stored in scratch; 2: its last part adds them
#endif
#ifndef SHARED
#define SHARED 0  // 1: some macro-tiles are shared between work-groups, see nv_dmma/gemm.cl
#endif
#ifndef EVEN
#define EVEN 0  // 1: what is copied here ends where macro-tiles do
#endif
#ifndef MMA_ROWS
#define MMA_ROWS 16  // 16: shapes of compute capability 9.0; 8: those of 8.0
#endif

#define WARPS_M (MC / WM)
#define WARPS_N (NC / WN)
#define WARPS (WARPS_M * WARPS_N * WK)
#define ITEMS (32 * WARPS)
#define STEPS (KC * CE / 4 / WK)  // of depth 4, of a warp in a slice
#define FRAGS_A (WM * CE / 16)  // of a warp
#define FRAGS_B (WN / 16)
// Whether A takes the side of 16 of a product: pairs that lie ALONG_W go there as they are loaded.
#define ROWS_A (KIND_A == ALONG_W || KIND_B == ALONG_P || CROSSED)
// Without panels, which few copies fill, the buffer of the slice before is refilled from the second
// step on: the first one is time for all warps to be done with it.
#define ASKS (!PACK_A && !PACK_B)
#define FIRST_FILL (ASKS && STEPS > 2)
#define PARTS_OF_FILL (STEPS - 1 - FIRST_FILL)

// A number of which the compiler does not know that it had it before.
INLINE long again(long x)
{
    long same;
    asm volatile("mov.b64 %0, %1;" : "=l"(same) : "l"(x));
    return same;
}

// Start one part of PARTS_OF_FILL of a work-item's copies of a slice.  `to` and `from` are its
// first copy's addresses, w_end and p_end count from there.  What lies beyond the depth becomes
// zero; what lies beyond the width may stay what it is, for it ends in rows and columns that C does
// not have.  `whole` says that nothing lies beyond the depth, and no pair lies on the edge.
INLINE void copy_part(uint to, __global const ELEM *from, long ld, int width, int kind, int turned,
                      int wide, int w_end, int p_end, int part, int whole)
{
    const int bytes = wide ? 16 : 8;
    const int copies = COPIES(width, wide);
    // Of copies of 8 bytes there are twice as many, and the distances between their columns, kept
    // from slice to slice, would take registers that products need: some would spill.
    const long step = turned || wide ? ld : again(ld);
    UNROLL
    for (int i = 0; i < copies; i++)
        if (i * PARTS_OF_FILL / copies == part) {
            const int w = copy_w(i * ITEMS, width, kind, turned, wide);
            const int p = copy_p(i * ITEMS, width, kind, turned, wide);
            const uint at = to + copy_at(i * ITEMS, width, kind, turned, wide);
            const int along = kind == ALONG_P ? p_end - p : w_end - w;
            const int across = kind == ALONG_P ? w_end - w : p_end - p;
            const int valid = whole        ? bytes
                              : across > 0 ? min(max(along, 0) * 8 * CE, bytes)
                                           : 0;
            __global const ELEM *x = from + (turned ? p + w * step : w + p * step);
            if ((whole && EVEN) || w < w_end) {
                if (bytes == 16)
                    async_copy16(at, x, valid);
                else
                    async_copy8(at, x, valid);
            }
        }
}

// A fragment's chunks serve one step of depth 4 (ALONG_W) or two.
#define STEPS_OF(kind) ((kind) == ALONG_W || CROSSED ? 1 : 2)
#define HALVES_OF(kind) ((kind) == ALONG_P && !CROSSED ? 2 : 1)

// Change the sign of `x` if `flip`; a product would cost a slot of the arithmetic units.
INLINE double signed_as(double x, int flip)
{
    return flip ? as_double(as_ulong(x) ^ 0x8000000000000000ul) : x;
}

// One of two neighbours along the depth of each of two rows (columns), of both halves of a unit.
INLINE double2 two_of(__local const double *number)
{
    return (double2)(number[0], number[64]);
}

// The pair of numbers along the width that step s takes out of the chunks of a real operand, or of
// B: two rows (columns) of one depth.
INLINE double2 pair_of(const double2 *chunk, int s, int kind)
{
    if (kind == ALONG_W || CROSSED)
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

// acc += rows x columns, 16 x 4 by 4 x 8.  `rows` are rows 2g and 2g + 1 of C and `column` one of
// its columns, or the other way round.  acc[0] and acc[1] are the first row with the columns of g =
// 2q and 2q + 1, acc[2] and acc[3] the second row with the same.
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
