// nv_dmma: how a slice of an operand lies in local memory and in packed panels.  Plain OpenCL C.
//
// The tensor core's shape is 16 x 8 x 4: of a 16 x 4 tile each of a warp's 32 work-items (lanes)
// holds two numbers.  So a slice (MC or NC wide, KC deep, counted in elements) is cut into units 16
// real numbers wide and 8 deep, two steps of 4.  A unit is a row of chunks of 16 bytes; lane 4*g +
// q loads one or two of them.  What a chunk holds depends on the kind of the operand:
//
//      kind      chunks of a unit   the chunk of [half][g, q] holds                        for
//      ALONG_W   2 halves x 32      real numbers (2g, p), (2g + 1, p), p = 2q + half       not A of z
//      ALONG_P   2 halves x 32      real numbers (w, 2q), (w, 2q + 1), w = 2g + half (*)   B, A of d
//      WHOLE     32                 one complex element (g, q): 8 x 4 of them are 16 x 8   A of z
//
//      (*) w = g + 8 * half where neighbours in memory are neighbours along the width
//
//      slice:   unit (0,0) (1,0) (2,0) ... along the width, then the next 8 of the depth
//      panel:   slice 0, slice 1, ... of one macro-tile's rows (columns), each without a gap
//
// Without packing a slice has the width of the next power of two, for then the places of copies need
// no division (nv_dmma/copies.cl); what it has beyond the macro-tile stays empty.
//
// In z the depth counts re and im as two numbers; a chunk of ALONG_P then is one element, and
// ALONG_W has the real parts of two in one half and the imaginary parts in the other.  Which of its
// 16 columns (rows) a lane has is free as long as the store of C agrees: the pairs 2g, 2g + 1 make
// a lane's part of C four neighbouring real numbers of a column.
//
// The order of the 32 chunks serves both ends.  Eight lanes in a row should read 128 bytes in a row
// from global memory, and eight lanes that load a fragment together, two g by four q, should hit
// all banks of local memory:
//
//      memory runs along the width:   slot 8*q + (g ^ 2*q)
//      memory runs along the depth:   slot 4*(g ^ odd) + q, odd for every other 8 of the depth
//
// Where a real A has pairs along the depth, too, those of both steps would be more fragments than
// there are registers.  So lanes load one number of each chunk in a step: lanes of even q the first
// of two neighbours along the depth and then the second, others the second and then the first
// (CROSSED).  In which step a depth has its turn is all the same to the product, as long as A and B
// agree.  Sixteen lanes, each with half a chunk, hit all banks as q changes places with its neighbour
// in every other two of g:
//
//      ALONG_P, crossed:              slot 4*(g ^ odd) + (q ^ (g / 2 % 2))

#ifndef MC
#define MC 64  // rows of the macro-tile; MC * CE is a multiple of 16
#endif
#ifndef NC
#define NC 64  // columns of the macro-tile, a multiple of 16
#endif
#ifndef KC
#define KC 16  // depth of a slice; KC * CE is a multiple of 16
#endif
#ifndef TRANS_A
#define TRANS_A 0  // 1: op(A) is the transposed of what lies in memory
#endif
#ifndef TRANS_B
#define TRANS_B 0
#endif
#ifndef WIDE_A
#define WIDE_A 1  // 1: all pairs of A that start at an even place can be read as one 16-byte vector
#endif
#ifndef WIDE_B
#define WIDE_B 1
#endif
#ifndef PACK_A
#define PACK_A 0  // 1: A comes in packed panels
#endif
#ifndef PACK_B
#define PACK_B 0
#endif

// Whether memory of a real A, which is not packed, runs along the depth.
#define CROSSED (!IS_COMPLEX && TRANS_A && !PACK_A)

#define ALONG_W 0
#define ALONG_P 1
#define WHOLE 2

// Packed panels are ALONG_W where they can be, for its fragments take fewer registers; what is
// copied directly takes pairs as they lie.
#define KIND_A (IS_COMPLEX ? WHOLE : CROSSED ? ALONG_P : ALONG_W)
#define KIND_B (!PACK_B && (IS_COMPLEX || !TRANS_B) ? ALONG_P : ALONG_W)

#define UNIT_CHUNKS(kind) ((kind) == WHOLE ? 32 : 64)
#define UNIT_WIDTH(kind) ((kind) == WHOLE ? 8 : 16)  // in elements
#define CHUNKS(width) ((width) * KC * CE / 2)        // of a slice

#define POWER_OF_TWO(x) ((x) > 64 ? 128 : (x) > 32 ? 64 : (x) > 16 ? 32 : 16)  // at least x
#define WIDTH_A (PACK_A ? MC : POWER_OF_TWO(MC * CE) / CE)                     // of a slice
#define WIDTH_B (PACK_B ? NC : POWER_OF_TWO(NC))

// Chunk c of a slice: its g and q, then its first element's place along the width and the depth.
// `turned` says that memory runs along the depth.
INLINE int chunk_g(uint c, int width, int kind, int turned)
{
    const int odd = c / UNIT_CHUNKS(kind) / (width / UNIT_WIDTH(kind)) % 2;
    return turned ? c % 32 / 4 ^ odd : c % 8 ^ c % 32 / 8 * 2;
}

INLINE int chunk_w(uint c, int width, int kind, int turned)
{
    const int unit = c / UNIT_CHUNKS(kind) % (width / UNIT_WIDTH(kind)) * UNIT_WIDTH(kind);
    const int g = chunk_g(c, width, kind, turned), second = c / 32 % 2;
    return unit + (kind == WHOLE     ? g
                   : kind == ALONG_W ? 2 * g
                   : turned          ? 2 * g + second
                                     : g + 8 * second);
}

INLINE int chunk_p(uint c, int width, int kind, int turned)
{
    const int unit = c / UNIT_CHUNKS(kind) / (width / UNIT_WIDTH(kind));
    const int crossed = CROSSED && kind == ALONG_P ? c / 8 % 2 : 0;
    const int q = turned ? c % 4 ^ crossed : c % 32 / 8;
    return (8 * unit + 2 * q) / CE + (CE == 1 && kind == ALONG_W ? c / 32 % 2 : 0);
}
