// nv_fused: slots of two fp16 a float, and how their floats are scaled.
//
// Two fp16 take half the products of three bf16, and fewer bytes.  But they hold a float only if, scaled,
// it is 0 or lies in [2^-14, 65504] (nv_split/family.py, with tau = 2^-22).  So all floats of X in a slot
// are multiplied by one power of two, those of Y by another one.
//
// A sample of the first slot chooses the powers.  While producers split they see whether all floats fit.
// If one does not, that slot is left out of the products.  After some slots, a batch, producers meet; they
// fill a slot of bf16 for each that was left out, and choose powers for its floats.  Where too many were,
// or the sample is too wide, the work-group's other slots are all of bf16.

#ifndef TAKES_FP16
#define TAKES_FP16 0  // 1: k is deep enough for the bound, and for fp16 to pay
#endif
#define LEAST_FP16 0x1p-14f
#define MOST_FP16 0x7bff  // bits of 65504, beside which there is infinity
#define TARGET 12         // exponent that the largest float gets: others may be eight times as large
#define MOST_POWER 57     // 2^-11 over two of them is a normal float
#define LEAST_BATCH 8     // slots of the first batch, and of those after one that failed; others ...
#define MOST_BATCH 32     // ... have twice as many as the one before
#define MOST_FAILED 2     // batches, of which more than a quarter was left out, until fp16 is given up
#define MOST_SPREAD 22    // binary orders that a sample of fp16 spans

// What producers tell those that multiply, and each other.
typedef struct {
    float factor[STAGES];  // that the products of a slot are multiplied by; 0: they are of bf16
    int left_out[STAGES];  // the number of the slot, if it is to be left out
    uint misfits[3];       // bits of slots, of the last three batches in turn
    uint largest[2];       // floats of X and Y that did not fit
} Marks;

typedef struct {
    float x, y;  // powers of two; 0: none was chosen yet
} Scales;

// What was seen of a slot's floats.
typedef struct {
    uint most;    // the largest of the even and of the odd ones, scaled, as fp16 without sign
    uint2 least;  // of X and Y, that is not 0: its bits without the sign, twice, less 1
} Seen;

INLINE float factor_of(Scales s)
{
    return as_float(0x7f000000u - as_uint(s.x)) * as_float(0x7f000000u - as_uint(s.y));
}

// The least float of a chunk and of what was seen, as in Seen.
INLINE uint least_doubled(const float x[8], uint least)
{
    UNROLL
    for (int q = 0; q < 8; q += 2)
        least = min(least, min(as_uint(x[q]) * 2 - 1, as_uint(x[q + 1]) * 2 - 1));
    return least;
}

INLINE int is_below_fp16(uint least, float scale)
{
    return least < (as_uint(LEAST_FP16) + as_uint(1.0f) - as_uint(scale)) * 2 - 1;
}

INLINE int is_beyond_fp16(Seen seen, Scales scales)
{
    return (seen.most & 0xffff) > MOST_FP16 || seen.most >> 16 > MOST_FP16 ||
           is_below_fp16(seen.least.x, scales.x) || is_below_fp16(seen.least.y, scales.y);
}

// The largest float, as bits without the sign.
INLINE uint largest_of(const float x[8], uint largest)
{
    UNROLL
    for (int q = 0; q < 8; q++)
        largest = max(largest, as_uint(x[q]) & 0x7fffffffu);
    return largest;
}

// The larger real of an element, likewise.
INLINE uint magnitude(ELEM x)
{
#if IS_COMPLEX
    return max(as_uint(x.x) & 0x7fffffffu, as_uint(x.y) & 0x7fffffffu);
#else
    return as_uint(x) & 0x7fffffffu;
#endif
}

// Whether magnitudes, the largest one and the inverted least one that is not 0, are too far apart.
INLINE int is_too_wide(uint largest, uint inverted)
{
    return inverted && exponent_of(largest) - exponent_of(~inverted) > MOST_SPREAD;
}

INLINE float power_for(uint largest)
{
    const int wish = TARGET - (largest ? exponent_of(largest) : 0);
    return as_float((uint)(min(max(wish, -MOST_POWER), MOST_POWER) + 127) << 23);
}

// Powers for the largest floats that all producers have seen.
INLINE Scales scales_for(uint2 largest, volatile __local Marks *marks)
{
    const int item = work_item() - 256;
    atomic_max(marks->largest, largest.x);
    atomic_max(marks->largest + 1, largest.y);
    producers_sync();
    const Scales scales = {power_for(marks->largest[0]), power_for(marks->largest[1])};
    producers_sync();
    if (item < 2)
        marks->largest[item] = 0;  // they meet before the next ones come
    return scales;
}
