// nv_wgmma: the producer of halves that are read where they lie, two work-items, by tensor copies.
//
// A tensor copy takes a box from a matrix (or a stack of them) that a tensor map describes, puts its
// chunks where the tensor cores read them, and zeros where the box reaches beyond the matrix.  Only the
// device knows where a matrix lies, so each work-group writes its own maps, of 128 bytes, first.
//
// A slot has the place of packed rows, 128 bytes each: rows of X or Y with 64 of k along them where k is
// contiguous.  Otherwise blocks of 64 such rows are 64 rows of k with 64 rows of X or Y along them.

#define PRODUCERS 64  // two warps: the first work-item of one copies X, that of the other Y
#define ARRIVALS 2
#define PRODUCER_REGISTERS "40"
#define MULTIPLIER_REGISTERS "232"
#define MAP_BYTES 128
#define MAPS_BYTES (2 * MAP_BYTES)
#define BOX_SIDE 64  // elements of 128 bytes

// Set a field of a map in local memory; dimension 0 is the one that is contiguous.
#define SET_MAP(field, type, at, constraint, map, value)                                       \
    asm volatile(SM90A "tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " at \
                       "%1;" ::"r"(map), constraint(value)                                     \
                 : "memory")
#define SET_MAP_TO(field, map, value) SET_MAP(field, "b32", "", "n", map, value)
#define SET_MAP_AT(field, at, map, value) SET_MAP(field, "b32", #at ", ", "r", map, (uint)(value))
#define SET_MAP_STRIDE(at, map, bytes)                                                         \
    SET_MAP("global_stride", "b64", #at ", ", "l", map, (ulong)(bytes))
#define HALVES 6          // elemtype
#define SWIZZLE_OF_128 3  // swizzle_mode: chunk c of 16 bytes of line r lies at c ^ (r % 8)

// A matrix, or a stack of them, with strips of X or Y.
typedef struct {
    __global const INTEGER *first;
    long ld, stride;
    long rows;
    int copies;
} Matrix;

INLINE void write_map(uint map, const Matrix *x, long depth, const int along_k, const int tall)
{
    SET_MAP("global_address", "b64", "", "l", map, (ulong)x->first);
    SET_MAP_TO("rank", map, 3 - 1);
    SET_MAP_AT("box_dim", 0, map, BOX_SIDE);
    SET_MAP_AT("box_dim", 1, map, along_k ? tall : BOX_SIDE);
    SET_MAP_AT("box_dim", 2, map, 1);
    SET_MAP_AT("global_dim", 0, map, along_k ? depth : x->rows);
    SET_MAP_AT("global_dim", 1, map, along_k ? x->rows : depth);
    SET_MAP_AT("global_dim", 2, map, x->copies);
    SET_MAP_STRIDE(0, map, x->ld * sizeof(INTEGER));
    SET_MAP_STRIDE(1, map, (x->copies > 1 ? x->stride : x->ld) * sizeof(INTEGER));
    SET_MAP_AT("element_stride", 0, map, 1);
    SET_MAP_AT("element_stride", 1, map, 1);
    SET_MAP_AT("element_stride", 2, map, 1);
    SET_MAP_TO("elemtype", map, HALVES);
    SET_MAP_TO("interleave_layout", map, 0);
    SET_MAP_TO("swizzle_mode", map, SWIZZLE_OF_128);
    SET_MAP_TO("fill_mode", map, 0);
}

// A warp: write a map, by way of local memory, to where tensor copies read it.
INLINE void make_map(__global uchar *to, uint map, const Matrix *x, long depth, const int along_k,
                     const int tall)
{
    const int lane = get_local_id(0) & 31;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(map + lane * 4), "r"(0) : "memory");
    warp_sync();
    if (lane == 0)
        write_map(map, x, depth, along_k, tall);
    warp_sync();
    asm volatile(SM90A "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu"
                       ".sync.aligned [%0], [%1], 128;" ::"l"((ulong)to), "r"(map)
                 : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"((ulong)to)
                 : "memory");
}

INLINE void tensor_copy(uint to, __global const uchar *map, int along, int across, int copy,
                        uint ready)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"((ulong)map), "r"(along), "r"(across), "r"(copy), "r"(ready)
                 : "memory");
}

// The slices of a strip of `tall` rows, which begins at `row`, and of all k, into slots at `at`.
INLINE void copy_strip(__global const uchar *map, int row, int copy, int slices, Turn *turn,
                       const int along_k, const int tall, uint at, uint full, uint empty)
{
    for (int slice = 0; slice < slices; slice++) {
        const uint to = at + turn->stage * SLOT, ready = full + turn->stage * 8;
        const int k = slice * DEPTH;
        mbarrier_wait(empty + turn->stage * 8, turn->parity);
        mbarrier_expect(ready, tall * ROW_BYTES);
        if (along_k)
            tensor_copy(to, map, k, row, copy, ready);
        else
            UNROLL
            for (int u = 0; u < tall; u += BOX_SIDE)
                tensor_copy(to + u * ROW_BYTES, map, row + u, k, copy, ready);
        next_turn(turn);
    }
}

INLINE void produce(const Gemm *g, const Packed *s, __global const INTEGER *a,
                    __global const INTEGER *b, __global uchar *scratch, uint slots, uint full,
                    uint empty)
{
    const int tiles = s->strips_x * s->strips_y * (int)g->batch;
    const int is_y = get_local_id(0) >> 5 & 1;
    const Matrix x = {b + g->offset_b, g->ldb, g->stride_b, g->n, s->copies_x};
    const Matrix y = {a + g->offset_a, g->lda, g->stride_a, g->m, s->copies_y};
    __global uchar *map = scratch + get_group_id(0) * MAPS_BYTES + is_y * MAP_BYTES;
    const uint draft = slots + STAGES * SLOT + is_y * MAP_BYTES;
    if (is_y)
        make_map(map, draft, &y, g->k, ALONG_K_Y, BY);
    else
        make_map(map, draft, &x, g->k, ALONG_K_X, BX);
    if (get_local_id(0) & 31)
        return;
    Turn turn = {0, 1};  // the first wait on a fresh barrier returns at once
    for (int tile = get_group_id(0); tile < tiles; tile += s->workers) {
        const Tile t = place_tile(s, tile);
        if (is_y)
            copy_strip(map, t.strip_y * BY, s->copies_y > 1 ? t.entry : 0, s->slices, &turn,
                       ALONG_K_Y, BY, slots + BX * ROW_BYTES, full, empty);
        else
            copy_strip(map, t.strip_x * BX, s->copies_x > 1 ? t.entry : 0, s->slices, &turn,
                       ALONG_K_X, BX, slots, full, empty);
    }
}
