// nv_dmma: what each copy of a slice moves, without packing.  Plain OpenCL C.

// A work-item starts each ITEMS-th copy of a slice, of 16 bytes where a chunk is aligned (`wide`),
// else of 8.  Copy number n moves this chunk, or this `half_of` one: where memory runs along the
// depth the second four of eight lanes go to the next unit along the depth, so that together they
// read 128 bytes in a row.
#define COPIES_OF_CHUNK(wide) ((wide) ? 1 : 2)
#define COPIES(width, wide) (CHUNKS(width) * COPIES_OF_CHUNK(wide) / ITEMS)  // of a work-item

INLINE int chunk_of(uint n, int width, int kind, int turned, int wide)
{
    const int row = width / UNIT_WIDTH(kind) * UNIT_CHUNKS(kind);  // chunks of 8 of the depth
    const uint c = n / COPIES_OF_CHUNK(wide);
    return turned ? c % 4 + c / 4 % 2 * row + c / 8 % (row / 4) * 4 + c / (2 * row) * (2 * row) : c;
}

INLINE int half_of(uint n, int wide)
{
    return n % COPIES_OF_CHUNK(wide);
}

// Where copy n begins: elements along the width and the depth, bytes in the slice.  Since all sizes
// are powers of two, the place of n = item + i * ITEMS is the sum of the places of the two terms,
// and only the first depends on the work-item.
INLINE int copy_w(uint n, int width, int kind, int turned, int wide)
{
    return chunk_w(chunk_of(n, width, kind, turned, wide), width, kind, turned) +
           (kind == ALONG_W ? half_of(n, wide) : 0);
}

INLINE int copy_p(uint n, int width, int kind, int turned, int wide)
{
    return chunk_p(chunk_of(n, width, kind, turned, wide), width, kind, turned) +
           (kind == ALONG_P ? half_of(n, wide) : 0);
}

INLINE int copy_at(uint n, int width, int kind, int turned, int wide)
{
    return chunk_of(n, width, kind, turned, wide) * 16 + half_of(n, wide) * 8;
}
