// nv_fused: slots of two fp16 a float, and how their floats are scaled.
//
// Two fp16 take half the products of three bf16, and fewer bytes.  But they hold a float only if, scaled,
// it is 0 or lies in [2^-14, 65504] (nv_split/family.py, with tau = 2^-22).  So all floats of X in a slot
// are multiplied by one power of two, those of Y by another one.
//
// The floats of a work-group's first slot that is not zero choose the powers, or bf16 if they are too far
// apart.  While producers split they see whether all floats of a slot fit.  If one does not, that slot is
// left out of the products.  After some slots, a batch, producers meet, and fill a slot of bf16 for each
// that was left out.  Once many were, all other slots are of bf16.

#ifndef TAKES_FP16
#define TAKES_FP16 0  // 1: k is deep enough for the bound, and for fp16 to pay
#endif
#define OF_FP16(x) (TAKES_FP16 ? (x) : 0)
#define LEAST_FP16 0x1p-14f
#define MOST_FP16 0x7bff  // bits of 65504, beside which there is infinity
#define TARGET 12         // exponent that the largest float gets: others may be eight times as large
#define SMALLER 0x1p-4f   // of the least float that chooses, what is to fit, too
#define MOST_POWER 57     // 2^-11 over two of them is a normal float
// Slots of a batch: as many as were filled before, at least and at most.
#define LEAST_BATCH 8
#define MOST_BATCH 32
// Whether so many are left out, of those filled, that bf16 takes less time.
#define ARE_MANY(left_out, filled) ((left_out) > 1 + (filled) / 16)

// What producers tell those that multiply, and each other.
typedef struct {
    float factor[STAGES];  // that the products of a slot are multiplied by; 0: they are of bf16
    int left_out[STAGES];  // the number of the slot, if it is to be left out
    uint misfits[3];       // bits of slots, of the last three batches in turn
    uint extremes[4];      // of slots that choose: largest floats of X and Y, the least ones inverted
} Marks;

typedef struct {
    float x, y;  // powers of two
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

INLINE float power_for(uint largest)
{
    const int wish = TARGET - (largest ? exponent_of(largest) : 0);
    return as_float((uint)(min(max(wish, -MOST_POWER), MOST_POWER) + 127) << 23);
}

// Choose powers for what all producers saw of a slot: the largest floats of X and Y, as bits without the
// sign, and the least ones, as in Seen; and tell whether fp16 holds floats like them: the largest ones are
// too large only beyond MOST_POWER.  Returned is whether there are floats of both that are not 0.
INLINE int choose_scales(Scales *scales, int *fits, uint2 largest, uint2 least,
                         volatile __local Marks *marks)
{
    leave_largest(marks->extremes, largest.x);
    leave_largest(marks->extremes + 1, largest.y);
    leave_largest(marks->extremes + 2, ~least.x);
    leave_largest(marks->extremes + 3, ~least.y);
    producers_sync();
    const uint x = marks->extremes[0], y = marks->extremes[1];
    const uint least_x = ~marks->extremes[2], least_y = ~marks->extremes[3];
    producers_sync();  // another slot may choose
    scales->x = power_for(x);
    scales->y = power_for(y);
    *fits = x && y && as_float(x) * scales->x < 0x1p15f && as_float(y) * scales->y < 0x1p15f &&
            !is_below_fp16(least_x, scales->x * SMALLER) && !is_below_fp16(least_y, scales->y * SMALLER);
    return x && y;
}
