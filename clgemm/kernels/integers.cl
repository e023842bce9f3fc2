// Integers and bool: as elements in memory, and as lanes, in which products are computed.
//
// Arithmetic is unsigned: it wraps around, as NumPy's does, and is the same for signed integers.  A lane
// may be wider than an element: the lower bits of sums and products depend on lower bits alone.  Lanes
// of bool are masks, all bits or none, and the sum of products is an or of ands.

#ifndef BITS
#define BITS 32  // of an element
#endif
#ifndef LANE_BITS
#define LANE_BITS 32  // of a lane, at least as many
#endif
#ifndef IS_BOOL
#define IS_BOOL 0  // 1: elements are true unless 0, of 8 bits
#endif

#define UINT_8 uchar
#define UINT_16 ushort
#define UINT_32 uint
#define UINT_64 ulong
typedef CAT(UINT_, BITS) INTEGER;
typedef CAT(UINT_, LANE_BITS) LANE;

#if IS_BOOL
#define TO_LANE(x) ((LANE)((x) ? ~0 : 0))
#define MULTIPLY_ADD(x, y, sum) ((sum) | ((x) & (y)))
#else
#define TO_LANE(x) ((LANE)(x))
#define MULTIPLY_ADD(x, y, sum) ((sum) + (x) * (y))
#endif
