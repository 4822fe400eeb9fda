/* delta_weights_sm90a.cu: the weights of pairs of rows in the delta rule's gradients, of all blocks at once, on tensor
 * cores; and the launches of the three kernels. */
#include "kernels/cuda/delta_backward_tensor.cuh"
#include "kernels/cuda/launch.cuh"

enum { WEIGHT_THREADS = 128 };

typedef struct weight_memory {
    unsigned char key[BLOCK * KEY_ROW], query[BLOCK * KEY_ROW];
    float total[BLOCK];
} weight_memory;

/* 16 rows by a warp. */
template <iv_dtype T>
IV_DEVICE void put_weights(const delta_backward_work &w, const backward_block &b, const weight_memory *m, int tile) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t key = iv_shared(m->key), query = iv_shared(m->query), a[2][KEY_STEPS][4];
    uint32_t *keys = (uint32_t *)(w.key + b.at * PAIRS), *queries = (uint32_t *)(w.query + b.at * PAIRS);
#pragma unroll
    for (int k = 0; k < KEY_STEPS; k++) {
        load_key_rows(a[0][k], key, tile * STEP, k);
        load_key_rows(a[1][k], query, tile * STEP, k);
    }
    for (int other = 0; other < ROW_STEPS; other++) {
        float d[2][2][4] = {};
#pragma unroll
        for (int k = 0; k < KEY_STEPS; k++) {
            uint32_t x[4];
            if (other > tile) break;
            load_keys(x, key, other * STEP, k);
#pragma unroll
            for (int i = 0; i < 2; i++)
                delta_mma<T>(d[i][0], a[i][k], x[0], x[1]), delta_mma<T>(d[i][1], a[i][k], x[2], x[3]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) { /* two neighbors of one row */
            int r = tile * STEP + g + e % 2 * 8, i = other * STEP + e / 2 * 8 + 2 * t, at = e % 2 * 2;
            float f0 = delta_factor(m->total[r], m->total[i]), f1 = delta_factor(m->total[r], m->total[i + 1]);
            const float *k = d[0][e / 2] + at, *q = d[1][e / 2] + at;
            bool here = r < b.rows, first = here && i <= r, second = here && i + 1 <= r;
            uint32_t p = iv_pack16(T, first && i < r ? f0 * k[0] : 0.0f, second && i + 1 < r ? f1 * k[1] : 0.0f);
            keys[(r * BLOCK + i) / 2] = minus16<T>(p & 0xffffu) | minus16<T>(p >> 16) << 16;
            queries[(r * BLOCK + i) / 2] = iv_pack16(T, first ? f0 * q[0] : 0.0f, second ? f1 * q[1] : 0.0f);
        }
    }
}

template <iv_dtype T>
static __global__ void __launch_bounds__(WEIGHT_THREADS) weights(const __grid_constant__ delta_backward_work w) {
    __shared__ __align__(128) weight_memory m;
    const iv_gpu_delta_args &f = w.a.forward;
    iv_let_next();
    iv_wait();
    unsigned span, head = w.first + blockIdx.y, heads = f.shape.key_heads, key_head = delta_key_head(f.shape, head);
    int index;
    if (!delta_find_block(w, blockIdx.x, &span, &index)) return;
    backward_block b = backward_block_at(w, span, head, index);
    const uint16_t *qk = (const uint16_t *)f.qk + (b.row * 2 * heads + key_head) * DIM;
    copy_key_rows(iv_shared(m.query), qk, 2 * heads * DIM, b.rows, BLOCK, (int)threadIdx.x, WEIGHT_THREADS);
    copy_key_rows(iv_shared(m.key), qk + heads * DIM, 2 * heads * DIM, b.rows, BLOCK, (int)threadIdx.x, WEIGHT_THREADS);
    iv_copies_commit();
    int r = (int)threadIdx.x;
    if (r < BLOCK) m.total[r] = r < b.rows ? f.gates[(b.row + r) * 2 * f.shape.value_heads + head] : 0.0f;
    __syncthreads();
    if (r == 0) add_decays(m.total);
    iv_copies_wait<0>();
    __syncthreads();
    put_weights<T>(w, b, &m, (int)threadIdx.x / 32);
}

int iv_delta_backward_weights(const delta_backward_work *w, size_t blocks, cudaStream_t stream) {
    auto *kernel = w->a.forward.shape.type == IV_BF16 ? weights<IV_BF16> : weights<IV_F16>;
    return iv_launch(kernel, dim3((unsigned)blocks, w->count), WEIGHT_THREADS, stream, *w);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

enum { LINE = 128, USUAL_SPANS = 64 };

/* Of a head: weights and lanes of a block, and a border. */
static size_t block_bytes(void) { return 2 * PAIRS * sizeof(uint16_t) + LANES * sizeof(float); }
static size_t border_bytes(void) { return (size_t)DIM * DIM * sizeof(uint16_t); }

static size_t most_blocks(size_t rows, size_t spans) { return rows / BLOCK + spans; }

static size_t head_bytes(size_t rows, size_t spans) {
    return most_blocks(rows, spans) * block_bytes() + (rows / BLOCK + 1) * border_bytes();
}

size_t iv_gpu_delta_tensor_scratch(const iv_gpu_delta_shape *s, size_t rows_max, size_t spans_max) {
    size_t usual = s->value_heads * head_bytes(rows_max, spans_max < USUAL_SPANS ? spans_max : USUAL_SPANS);
    size_t one = head_bytes(rows_max, spans_max);
    return usual > one ? usual : one;
}

/* As many heads at a time as have room. */
int iv_gpu_delta_backward_tensor(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    const iv_gpu_delta_args *f = &a->forward;
    size_t blocks = most_blocks(f->rows, f->span_count), fit = a->scratch_bytes / head_bytes(f->rows, f->span_count);
    int code = 0;
    if (fit == 0) return (int)cudaErrorInvalidValue;
    for (unsigned first = 0; first < f->shape.value_heads && !code; first += (unsigned)fit) {
        delta_backward_work w = {};
        unsigned left = f->shape.value_heads - first;
        w.a = *a, w.first = first, w.count = left < fit ? left : (unsigned)fit;
        w.query = (uint16_t *)a->scratch, w.key = w.query + blocks * w.count * PAIRS;
        w.next = w.key + blocks * w.count * PAIRS;
        w.lanes = (float *)(w.next + (f->rows / BLOCK + 1) * w.count * DIM * DIM);
        code = iv_delta_backward_weights(&w, blocks, (cudaStream_t)stream);
        if (!code) code = iv_delta_backward_columns(&w, (cudaStream_t)stream);
        if (!code) code = iv_delta_backward_blocks(&w, blocks, (cudaStream_t)stream);
    }
    return code;
}
