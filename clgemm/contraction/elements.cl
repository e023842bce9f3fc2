// What no product of matrices is: copies with other strides, conjugated copies, products of elements.
//
// PARTS is 2 of complex numbers, which are pairs of REAL; offsets and strides count REAL.  A stride
// of 0 broadcasts.  Up to 8 axes, the last one fastest; those that are not there have the extent 1.

#define AXES 8

#if PARTS == 2
typedef CAT(REAL, 2) element;
#define LOAD(x, i) vload2(0, (x) + (i))
#define STORE(value, x, i) vstore2(value, 0, (x) + (i))
#define CONJUGATE(v) (element)((v).x, -(v).y)
#define TIMES(v, w) (element)((v).x * (w).x - (v).y * (w).y, (v).x * (w).y + (v).y * (w).x)
#else
typedef REAL element;
#define LOAD(x, i) (x)[i]
#define STORE(value, x, i) (x)[i] = (value)
#define CONJUGATE(v) (v)
#define TIMES(v, w) ((v) * (w))
#endif

// Where the element `number` of an array in C order lies in one with given strides.
long place_of(long number, long8 extents, long8 strides, long offset)
{
    long n[AXES], steps[AXES];
    vstore8(extents, 0, n);
    vstore8(strides, 0, steps);
    for (int axis = AXES - 1; axis >= 0; axis--) {
        const long rest = number / n[axis];
        offset += (number - rest * n[axis]) * steps[axis];
        number = rest;
    }
    return offset;
}

__kernel void copy_elements(
    __global REAL *c, long c_offset, long8 c_strides,
    __global const REAL *a, long a_offset, long8 a_strides,
    long8 extents, int conjugates)
{
    const long i = get_global_id(0);
    const element value = LOAD(a, place_of(i, extents, a_strides, a_offset));
    const long place = place_of(i, extents, c_strides, c_offset);
    STORE(conjugates ? CONJUGATE(value) : value, c, place);
}

__kernel void multiply_elements(
    __global REAL *c, long c_offset, long8 c_strides,
    __global const REAL *a, long a_offset, long8 a_strides,
    __global const REAL *b, long b_offset, long8 b_strides,
    long8 extents)
{
    const long i = get_global_id(0);
    const element v = LOAD(a, place_of(i, extents, a_strides, a_offset));
    const element w = LOAD(b, place_of(i, extents, b_strides, b_offset));
    const long place = place_of(i, extents, c_strides, c_offset);
    STORE(TIMES(v, w), c, place);
}

__kernel void fill_with_ones(__global REAL *c)
{
    const long i = get_global_id(0);
    c[i] = i % PARTS == 0;
}
