// Integers as elements in memory, and as lanes of the vectors that are computed in.
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
#define IS_BOOL 0  // 1: elements are true unless 0, of 8 bits, and so are lanes
#endif
#ifndef VW
#define VW 16  // vector width: lanes in a SIMD register
#endif
#ifndef MV
#define MV 2  // vectors in a column of the micro-tile
#endif
#ifndef NR
#define NR 12  // columns of the micro-tile
#endif

#define MR (MV * VW)  // rows of the micro-tile
#define UINT_8 uchar
#define UINT_16 ushort
#define UINT_32 uint
#define UINT_64 ulong
typedef CAT(UINT_, BITS) INTEGER;
typedef CAT(UINT_, LANE_BITS) LANE;
// OpenCL's own vectors end at 16 elements; a register has 32 of 16 bits, 64 of 8.
typedef LANE LANES __attribute__((ext_vector_type(VW)));
// As they lie in matrices: aligned to an element.
typedef INTEGER INTEGERS __attribute__((ext_vector_type(VW), aligned(BITS / 8)));

#if IS_BOOL
#define TO_LANE(x) ((LANE)((x) ? ~0 : 0))
#define TO_LANES(x) __builtin_astype((x) != (INTEGERS)(0), LANES)
#define FROM_LANES(x) ((x) & (LANES)(1))
#define MULTIPLY_ADD(x, y, sum) ((sum) | ((x) & (y)))
#else
#define TO_LANE(x) ((LANE)(x))
#define TO_LANES(x) __builtin_convertvector(x, LANES)
#define FROM_LANES(x) __builtin_convertvector(x, INTEGERS)
#define MULTIPLY_ADD(x, y, sum) ((sum) + (x) * (y))
#endif
