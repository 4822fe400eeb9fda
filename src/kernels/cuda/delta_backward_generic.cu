/* delta_backward_generic.cu: the delta rule's gradients for any sizes and types, in both arithmetics. A CTA has a value
 * head of a sequence, whose blocks it takes from the last to the first, with its values in global memory. It is the
 * plain form that the kernel of tensor cores is compared with; not fast. */
#include "kernels/cuda/delta_backward.h"
#include "kernels/cuda/delta.cuh"
#include "kernels/cuda/launch.cuh"

enum { BACK_WARPS = 8, THREADS = BACK_WARPS * 32, TILES = BLOCK / STEP };
static_assert((int)THREADS == (int)LANES, "a thread has a lane of the law");

/* Memory of a CTA. Pairs of rows [64][64] in the type, +0 where they have no product. */
typedef struct work {
    float *next;                       /* [key_dim][value_dim]: the gradient of the state behind the block */
    float *du;                         /* [64][value_dim] */
    float *y, *z, *border;             /* [64][key_dim] */
    void *query, *key, *out, *v, *sum; /* p', p, B', B, M */
} work;

static size_t work_floats(const iv_gpu_delta_shape *s) {
    return (size_t)s->key_dim * s->value_dim + BLOCK * (s->value_dim + 3 * s->key_dim + 5 * BLOCK);
}

IV_DEVICE work carve(const iv_gpu_delta_shape &s, float *base) {
    work w;
    w.next = base, base += (size_t)s.key_dim * s.value_dim;
    w.du = base, base += BLOCK * s.value_dim;
    w.y = base, base += BLOCK * s.key_dim;
    w.z = base, base += BLOCK * s.key_dim;
    w.border = base, base += BLOCK * s.key_dim;
    w.query = base, base += BLOCK * BLOCK;
    w.key = base, base += BLOCK * BLOCK;
    w.out = base, base += BLOCK * BLOCK;
    w.v = base, base += BLOCK * BLOCK;
    w.sum = base;
    return w;
}

/* What a CTA has, and the block at work: `rows` rows from `row` on in the batch, in `steps` steps. */
typedef struct job {
    delta_span span;
    unsigned head, key_head;
    int dim, value_dim, padded, value_padded;
    int index, rows, steps;
    bool last; /* no gradient comes from behind it */
    size_t row;
} job;

/* In shared memory. */
typedef struct numbers {
    float total[BLOCK], own[BLOCK], behind[BLOCK], lanes[LANES];
} numbers;

IV_DEVICE float to_border(const job &j, const numbers &n, int t) {
    return j.last ? 0.0f : delta_factor(n.total[BLOCK - 1], n.total[t]);
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

template <iv_dtype T> IV_DEVICE uint32_t minus(uint32_t bits) { return rounded<T>(0.0f - widened<T>(bits)); }

template <iv_dtype T> struct operands {
    const iv_gpu_delta_backward_args &a;
    const job &j;
    const work &w;

    __device__ size_t values_at(int t, int i) const {
        return ((j.row + t) * a.forward.shape.value_heads + j.head) * j.value_dim + i;
    }
    __device__ uint32_t of_keys(int t, int c, int which) const {
        if (t >= j.rows || c >= j.dim) return 0;
        size_t heads = a.forward.shape.key_heads;
        return get_bits<T>(a.forward.qk, (((j.row + t) * 2 + which) * heads + j.key_head) * j.dim + c);
    }
    __device__ uint32_t query(int t, int c) const { return of_keys(t, c, 0); }
    __device__ uint32_t key(int t, int c) const { return of_keys(t, c, 1); }
    __device__ uint32_t of_values(const void *p, int t, int i) const {
        return t < j.rows && i < j.value_dim ? get_bits<T>(p, values_at(t, i)) : 0;
    }
    __device__ uint32_t update(int t, int i) const { return of_values(a.forward.kept.updates, t, i); }
    __device__ uint32_t dout(int t, int i) const { return of_values(a.dout, t, i); }
    __device__ float *dv_at(int t, int i) const {
        const iv_gpu_delta_shape &s = a.forward.shape;
        return a.dx + (j.row + t) * s.width + 2 * s.key_heads * j.dim + j.head * j.value_dim + i;
    }
    __device__ uint32_t dv(int t, int i) const { return t < j.rows && i < j.value_dim ? rounded<T>(*dv_at(t, i)) : 0; }
    __device__ uint32_t state(int c, int i) const {
        if (j.index == 0 || c >= j.dim || i >= j.value_dim) return 0;
        size_t at = delta_border_at(a.forward.shape, j.span, j.index - 1, j.head) * j.dim * j.value_dim;
        return get_bits<T>(a.forward.kept.borders, at + (size_t)i * j.dim + c);
    }
    __device__ uint32_t next(int c, int i) const {
        return c < j.dim && i < j.value_dim ? rounded<T>(w.next[(size_t)c * j.value_dim + i]) : 0;
    }
};

IV_DEVICE int pair_at(int t, int i) { return t * BLOCK + i; }

/* ---- chains ----------------------------------------------------------------------------------------------------- */

/* A step of 16 from k on, of 16 rows and 8 columns by a warp: lane's d[e] is row g + e / 2 * 8, column 2 t + e % 2. */
template <bool TC16, iv_dtype T, class A, class B>
IV_DEVICE void step_of(float (&d)[4], const A &a, const B &b, int k) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (TC16) {
        int i = k + 2 * t;
        uint32_t rows[4] = {a(g, i) | a(g, i + 1) << 16, a(g + 8, i) | a(g + 8, i + 1) << 16,
                            a(g, i + 8) | a(g, i + 9) << 16, a(g + 8, i + 8) | a(g + 8, i + 9) << 16};
        delta_mma<T>(d, rows, b(g, i) | b(g, i + 1) << 16, b(g, i + 8) | b(g, i + 9) << 16);
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = g + e / 2 * 8, column = 2 * t + e % 2;
            for (int i = k; i < k + STEP; i += 2) {
                d[e] = iv_fma_flush(widened<T>(a(row, i + 1)), widened<T>(b(column, i + 1)), d[e]);
                d[e] = iv_fma_flush(widened<T>(a(row, i)), widened<T>(b(column, i)), d[e]);
            }
        }
    }
}

template <bool TC16, iv_dtype T, class A, class B>
IV_DEVICE void chain(float (&d)[4], const A &a, const B &b, int from, int to) {
    for (int k = from; k < to; k += STEP) step_of<TC16, T>(d, a, b, k);
}

/* Calls f(row, column, e) for a lane's elements of a tile. */
template <class F> IV_DEVICE void each_of(const F &f) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) f(g + e / 2 * 8, 2 * t + e % 2, e);
}

/* ---- weights ---------------------------------------------------------------------------------------------------- */

template <bool TC16, iv_dtype T> IV_DEVICE void weigh(const operands<T> &o, numbers &n) {
    const job &j = o.j;
    for (int unit = threadIdx.x / 32; unit < TILES * BLOCK / 8; unit += BACK_WARPS) {
        int first = unit / (BLOCK / 8) * STEP, other = unit % (BLOCK / 8) * 8;
        auto key = [&](int r, int c) { return o.key(other + r, c); };
        float q[4] = {}, k[4] = {};
        if (other < first + STEP && first < j.rows) {
            chain<TC16, T>(
                q, [&](int r, int c) { return o.query(first + r, c); }, key, 0, j.padded);
            chain<TC16, T>(
                k, [&](int r, int c) { return o.key(first + r, c); }, key, 0, j.padded);
        }
        each_of([&](int r, int c, int e) {
            int t = first + r, i = other + c;
            bool sees = i <= t && t < j.rows;
            float f = sees ? delta_factor(n.total[t], n.total[i]) : 0.0f;
            put<T>(o.w.query, pair_at(t, i), sees ? f * q[e] : 0.0f);
            put<T>(o.w.key, pair_at(t, i), sees && i < t ? f * k[e] : 0.0f);
        });
    }
    __syncthreads();
}

template <bool TC16, iv_dtype T> IV_DEVICE void weigh_gradients(const operands<T> &o, numbers &n) {
    const job &j = o.j;
    for (int unit = threadIdx.x / 32; unit < TILES * BLOCK / 8; unit += BACK_WARPS) {
        int first = unit / (BLOCK / 8) * STEP, other = unit % (BLOCK / 8) * 8;
        auto update = [&](int r, int i) { return o.update(other + r, i); };
        float out[4] = {}, v[4] = {};
        if (other < first + STEP && first < j.rows) {
            chain<TC16, T>(
                out, [&](int r, int i) { return o.dout(first + r, i); }, update, 0, j.value_padded);
            chain<TC16, T>(
                v, [&](int r, int i) { return o.dv(first + r, i); }, update, 0, j.value_padded);
        }
        each_of([&](int r, int c, int e) {
            int t = first + r, i = other + c, at = pair_at(t, i);
            bool sees = i <= t && t < j.rows, before = sees && i < t;
            float f = sees ? delta_factor(n.total[t], n.total[i]) : 0.0f;
            float sum = get<T>(o.w.query, at) * out[e] - get<T>(o.w.key, at) * v[e];
            put<T>(o.w.out, at, sees ? f * out[e] : 0.0f);
            put<T>(o.w.v, at, before ? f * v[e] : 0.0f);
            put<T>(o.w.sum, at, before ? sum : 0.0f);
        });
    }
    __syncthreads();
}

/* ---- gradients of updates -----------------------------------------------------------------------------------------
 */

/* A row's du and dv of a warp's 8 columns, from a tile's chains so far. */
template <bool TC16, iv_dtype T>
IV_DEVICE void update_row(const operands<T> &o, const float (&tile)[4], int first, int r, int column, float beta) {
    const job &j = o.j;
    float d[4] = {tile[0], tile[1], tile[2], tile[3]};
    step_of<TC16, T>(
        d,
        [&](int t, int s) { return s > first + t ? minus<T>(get_bits<T>(o.w.key, (size_t)pair_at(s, first + t))) : 0; },
        [&](int c, int s) { return s > first + r ? o.dv(s, column + c) : 0; }, first);
    each_of([&](int row, int c, int e) {
        if (row != r || column + c >= j.value_dim) return;
        float du = d[e] + 0.0f;
        o.w.du[(first + r) * j.value_dim + column + c] = du;
        *o.dv_at(first + r, column + c) = iv_canon(beta * du);
    });
    __syncwarp();
}

/* By a warp, whose columns no other warp reads or writes meanwhile. */
template <bool TC16, iv_dtype T> IV_DEVICE void update_columns(const operands<T> &o, const numbers &n, int column) {
    const job &j = o.j;
    unsigned heads = o.a.forward.shape.value_heads;
    for (int tile = j.steps - 1; tile >= 0; tile--) {
        int first = tile * STEP;
        float d[4] = {};
        if (!j.last)
            chain<TC16, T>(
                d, [&](int t, int c) { return o.key(first + t, c); },
                [&](int c, int k) { return o.next(k, column + c); }, 0, j.padded);
        each_of([&](int row, int, int e) { d[e] = first + row < j.rows ? to_border(j, n, first + row) * d[e] : 0.0f; });
        for (int s = j.steps - 1; s >= tile; s--)
            step_of<TC16, T>(
                d, [&](int t, int k) { return get_bits<T>(o.w.query, (size_t)pair_at(k, first + t)); },
                [&](int c, int k) { return o.dout(k, column + c); }, s * STEP);
        for (int s = j.steps - 1; s > tile; s--)
            step_of<TC16, T>(
                d, [&](int t, int k) { return minus<T>(get_bits<T>(o.w.key, (size_t)pair_at(k, first + t))); },
                [&](int c, int k) { return o.dv(k, column + c); }, s * STEP);
        for (int r = min(j.rows - first, (int)STEP) - 1; r >= 0; r--) {
            float beta = o.a.forward.gates[(j.row + first + r) * 2 * heads + heads + j.head];
            update_row<TC16, T>(o, d, first, r, column, beta);
        }
    }
}

/* The sum over n elements in the law's lanes, by a warp. */
template <class X, class Y> IV_DEVICE float row_dot(int n, const X &x, const Y &y) {
    float l[WARPS] = {0};
    for (int i = 0; i < n; i += LANES)
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            int e = i + k * 32 + (int)threadIdx.x % 32;
            if (e < n) l[k] = __fmaf_rn(x(e), y(e), l[k]);
        }
    return fold_warp(fold_far(l));
}

template <bool TC16, iv_dtype T> IV_DEVICE void substitute(const operands<T> &o, const numbers &n) {
    const job &j = o.j;
    const iv_gpu_delta_shape &s = o.a.forward.shape;
    for (int column = (int)threadIdx.x / 32 * 8; column < j.value_dim; column += BACK_WARPS * 8)
        update_columns<TC16, T>(o, n, column);
    __syncthreads();
    for (int t = threadIdx.x / 32; t < j.rows; t += BACK_WARPS) {
        float product = row_dot(
            j.value_dim, [&](int i) { return o.w.du[t * j.value_dim + i]; },
            [&](int i) { return widened<T>(o.update(t, i)); });
        float beta = o.a.forward.gates[((j.row + t) * 2 + 1) * s.value_heads + j.head];
        if (threadIdx.x % 32 == 0)
            o.a.dx[(j.row + t + 1) * s.width - 2 * s.value_heads + j.head] = iv_canon(product * (1.0f - beta));
    }
    __syncthreads();
}

/* ---- gradients of keys and queries --------------------------------------------------------------------------------
 */

template <bool TC16, iv_dtype T>
IV_DEVICE void key_tile(const operands<T> &o, const numbers &n, int first, int column) {
    const job &j = o.j;
    const iv_gpu_delta_shape &s = o.a.forward.shape;
    auto state = [&](int c, int i) { return o.state(column + c, i); };
    auto key = [&](int c, int t) { return o.key(t, column + c); };
    float y[4] = {}, z[4] = {}, b[4] = {}, dk[4];
    if (j.index) {
        chain<TC16, T>(
            y, [&](int t, int i) { return o.dout(first + t, i); }, state, 0, j.value_padded);
        chain<TC16, T>(
            z, [&](int t, int i) { return o.dv(first + t, i); }, state, 0, j.value_padded);
    }
    if (!j.last)
        chain<TC16, T>(
            b, [&](int t, int i) { return o.update(first + t, i); },
            [&](int c, int i) { return o.next(column + c, i); }, 0, j.value_padded);
    each_of([&](int row, int c, int e) {
        int t = first + row, at = t * j.dim + column + c;
        float f = t < j.rows ? delta_factor(n.total[t], 0.0f) : 0.0f;
        y[e] = f * y[e], z[e] = f * z[e], b[e] = t < j.rows ? to_border(j, n, t) * b[e] : 0.0f;
        dk[e] = b[e] - z[e];
        if (t < j.rows && column + c < j.dim) o.w.y[at] = y[e], o.w.z[at] = z[e], o.w.border[at] = b[e];
    });
    chain<TC16, T>(
        y, [&](int t, int i) { return get_bits<T>(o.w.out, (size_t)pair_at(first + t, i)); }, key, 0, first + STEP);
    chain<TC16, T>(
        dk,
        [&](int t, int i) {
            int own = first + t, at = i < own ? pair_at(own, i) : pair_at(i, own);
            return i == own ? 0 : minus<T>(get_bits<T>(o.w.v, (size_t)at));
        },
        key, 0, j.steps * STEP);
    chain<TC16, T>(
        dk, [&](int t, int i) { return get_bits<T>(o.w.out, (size_t)pair_at(i, first + t)); },
        [&](int c, int t) { return o.query(t, column + c); }, first, j.steps * STEP);
    each_of([&](int row, int c, int e) {
        int t = first + row;
        if (t >= j.rows || column + c >= j.dim) return;
        float *to = o.a.dkeys + ((j.row + t) * 2 * s.value_heads + j.head) * j.dim + column + c;
        to[0] = iv_canon(y[e] + 0.0f), to[(size_t)s.value_heads * j.dim] = iv_canon(dk[e] + 0.0f);
    });
}

/* The rows' parts of the gradients of decays. */
template <bool TC16, iv_dtype T> IV_DEVICE void add_pairs(const operands<T> &o, numbers &n) {
    const job &j = o.j;
    int first = (int)threadIdx.x / 32 * STEP;
    auto one = [](int, int) { return rounded<T>(1.0f); };
    if (first < j.rows) {
        float row[4] = {}, column[4] = {};
        chain<TC16, T>(
            row, [&](int t, int i) { return get_bits<T>(o.w.sum, (size_t)pair_at(first + t, i)); }, one, 0,
            first + STEP);
        chain<TC16, T>(
            column, [&](int t, int i) { return get_bits<T>(o.w.sum, (size_t)pair_at(i, first + t)); }, one, first,
            j.steps * STEP);
        each_of([&](int r, int c, int e) {
            if (c == 0) n.own[first + r] = row[e] - column[e];
        });
    }
    __syncthreads();
    for (int t = threadIdx.x / 32; t < j.rows; t += BACK_WARPS) {
        auto key = [&](int c) { return widened<T>(o.key(t, c)); };
        float q = row_dot(
            j.dim, [&](int c) { return widened<T>(o.query(t, c)); }, [&](int c) { return o.w.y[t * j.dim + c]; });
        float k = row_dot(j.dim, key, [&](int c) { return o.w.z[t * j.dim + c]; });
        float b = row_dot(j.dim, key, [&](int c) { return o.w.border[t * j.dim + c]; });
        if (threadIdx.x % 32 == 0) n.own[t] = n.own[t] + (q - k), n.behind[t] = b;
    }
    __syncthreads();
}

/* ---- borders ------------------------------------------------------------------------------------------------------
 */

/* Gradients of the block's decays. */
template <iv_dtype T> IV_DEVICE void put_decays(const operands<T> &o, numbers &n) {
    const job &j = o.j;
    const iv_gpu_delta_shape &s = o.a.forward.shape;
    float lane = 0.0f, first = 0.0f;
    if (!j.last && j.index) {
        for (int i = threadIdx.x; i < j.dim * j.value_dim; i += LANES)
            lane = __fmaf_rn(widened<T>(o.state(i / j.value_dim, i % j.value_dim)), o.w.next[i], lane);
        first = delta_factor(n.total[BLOCK - 1], 0.0f) * fold_block(lane, n.lanes);
    }
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int t = j.rows - 1; t >= 0; t--) n.own[t] = sum = sum + n.own[t];
        for (int t = 0; t < j.rows; t++) {
            o.a.dx[(j.row + t + 1) * s.width - s.value_heads + j.head] = iv_canon(n.own[t] + first);
            first = first + n.behind[t];
        }
    }
    __syncthreads();
}

/* next becomes the gradient of the state at the border where the block begins. */
template <bool TC16, iv_dtype T> IV_DEVICE void move_border(const operands<T> &o, const numbers &n) {
    const job &j = o.j;
    int columns = (j.value_dim + 7) / 8;
    float factor = j.last ? 0.0f : delta_factor(n.total[BLOCK - 1], 0.0f);
    for (int unit = threadIdx.x / 32; unit < j.padded / STEP * columns; unit += BACK_WARPS) {
        int first = unit / columns * STEP, column = unit % columns * 8;
        float d[4];
        each_of([&](int r, int c, int e) {
            bool there = first + r < j.dim && column + c < j.value_dim && !j.last;
            d[e] = there ? o.w.next[(size_t)(first + r) * j.value_dim + column + c] * factor : 0.0f;
        });
        auto decayed = [&](uint32_t bits, int t) {
            return t < j.rows ? delta_factor(n.total[t], 0.0f) * widened<T>(bits) : 0.0f;
        };
        chain<TC16, T>(
            d, [&](int r, int t) { return rounded<T>(decayed(o.query(t, first + r), t)); },
            [&](int c, int t) { return o.dout(t, column + c); }, 0, j.steps * STEP);
        chain<TC16, T>(
            d, [&](int r, int t) { return rounded<T>(0.0f - decayed(o.key(t, first + r), t)); },
            [&](int c, int t) { return o.dv(t, column + c); }, 0, j.steps * STEP);
        each_of([&](int r, int c, int e) {
            if (first + r < j.dim && column + c < j.value_dim)
                o.w.next[(size_t)(first + r) * j.value_dim + column + c] = d[e];
        });
    }
    __syncthreads();
}

/* ---- sequences ----------------------------------------------------------------------------------------------------
 */

template <bool TC16, iv_dtype T> IV_DEVICE void run_block(const operands<T> &o, numbers &n) {
    const job &j = o.j;
    unsigned heads = o.a.forward.shape.value_heads;
    if (threadIdx.x == 0)
        for (int t = 0; t < j.rows; t++)
            n.total[t] = (t ? n.total[t - 1] : 0.0f) + o.a.forward.gates[(j.row + t) * 2 * heads + j.head];
    __syncthreads();
    weigh<TC16, T>(o, n);
    substitute<TC16, T>(o, n);
    weigh_gradients<TC16, T>(o, n);
    int columns = (j.dim + 7) / 8;
    for (int unit = threadIdx.x / 32; unit < j.steps * columns; unit += BACK_WARPS)
        key_tile<TC16, T>(o, n, unit / columns * STEP, unit % columns * 8);
    __syncthreads();
    add_pairs<TC16, T>(o, n);
    put_decays<T>(o, n);
    if (j.index) move_border<TC16, T>(o, n);
}

template <bool TC16, iv_dtype T>
static __global__ void __launch_bounds__(THREADS)
    rule_backward(const __grid_constant__ iv_gpu_delta_backward_args a, size_t floats) {
    __shared__ numbers n;
    const iv_gpu_delta_shape &s = a.forward.shape;
    iv_let_next();
    iv_wait();
    work w = carve(s, (float *)a.scratch + blockIdx.x * floats);
    for (size_t item = blockIdx.x; item < a.forward.span_count * s.value_heads; item += gridDim.x) {
        job j;
        if (a.forward.spans[item / s.value_heads].rows == 0) continue;
        j.span = delta_span_of(a.forward, item / s.value_heads);
        j.head = (unsigned)(item % s.value_heads), j.key_head = delta_key_head(s, j.head);
        j.dim = (int)s.key_dim, j.value_dim = (int)s.value_dim;
        j.padded = (j.dim + STEP - 1) / STEP * STEP, j.value_padded = (j.value_dim + STEP - 1) / STEP * STEP;
        j.last = true;
        for (j.index = j.span.last; j.index >= 0; j.index--, j.last = false) {
            j.row = (size_t)(j.span.row + j.index * BLOCK), j.rows = min(j.span.rows - j.index * BLOCK, (int)BLOCK);
            j.steps = (j.rows + STEP - 1) / STEP;
            run_block<TC16, T>(operands<T>{a, j, w}, n);
        }
    }
}

static size_t ctas_of(const iv_gpu_delta_shape *s, size_t spans, int sms) {
    size_t items = spans * s->value_heads, most = 2 * (size_t)sms;
    return items < most ? items : most;
}

size_t iv_gpu_delta_generic_scratch(const iv_gpu_delta_shape *s, size_t spans, int sms) {
    return ctas_of(s, spans, sms) * work_floats(s) * sizeof(float);
}

template <bool TC16, iv_dtype T> static int launch(const iv_gpu_delta_backward_args *a, cudaStream_t stream) {
    const iv_gpu_delta_shape *s = &a->forward.shape;
    dim3 grid((unsigned)ctas_of(s, a->forward.span_count, a->sms));
    return iv_launch(rule_backward<TC16, T>, grid, THREADS, stream, *a, work_floats(s));
}

int iv_gpu_delta_backward_generic(const iv_gpu_delta_backward_args *a, iv_gpu_stream stream) {
    bool tc16 = a->forward.shape.arithmetic == IV_TC16;
    switch (a->forward.shape.type) {
    case IV_BF16: return tc16 ? launch<true, IV_BF16>(a, stream) : launch<false, IV_BF16>(a, stream);
    case IV_F16: return tc16 ? launch<true, IV_F16>(a, stream) : launch<false, IV_F16>(a, stream);
    case IV_F32: return tc16 ? (int)cudaErrorInvalidValue : launch<false, IV_F32>(a, stream);
    default: return (int)cudaErrorInvalidValue;
    }
}
