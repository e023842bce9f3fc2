// Vectors of integers and of bool, as they lie in memory and as they are computed in.
//
// What a single one of either is, integers.cl says.

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
// OpenCL's own vectors end at 16 elements; a register has 32 of 16 bits, 64 of 8.
typedef LANE LANES __attribute__((ext_vector_type(VW)));
// As they lie in matrices: aligned to an element.
typedef INTEGER INTEGERS __attribute__((ext_vector_type(VW), aligned(BITS / 8)));

#if IS_BOOL
#define TO_LANES(x) __builtin_astype((x) != (INTEGERS)(0), LANES)
#define FROM_LANES(x) ((x) & (LANES)(1))
#else
#define TO_LANES(x) __builtin_convertvector(x, LANES)
#define FROM_LANES(x) __builtin_convertvector(x, INTEGERS)
#endif
