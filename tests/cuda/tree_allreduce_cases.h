/* tree_allreduce_cases.h: the ranks' tree all-reduce and barrier against the scalar reference, for
 * test_tree_allreduce.c and test_emulated_tree_allreduce.c: several all-reduces in a graph that is replayed, nodes that
 * are written late, one-shot and two-shot, any number of ranks. Ranks without a GPU of their own share one, each in its
 * own stream. */
#ifndef IV_TESTS_CUDA_TREE_ALLREDUCE_CASES_H
#define IV_TESTS_CUDA_TREE_ALLREDUCE_CASES_H

#include "cuda/on_gpu.h"
#include "kernels/cuda/ops.h"
#include "kernels/tree_allreduce.h"
#include "numerics/rows.h"

enum { STEPS = 4, REPLAYS = 3, RANKS = IV_RANKS_MAX, RANKS_A_GPU = 4 };
#ifndef EMULATED
#define EMULATED 0
#endif

typedef struct team {
    int ranks, gpus;
    cudaStream_t stream[RANKS];
    iv_gpu_peers peers[RANKS];
    iv_gpu_timeouts *timeouts;
} team;

static void use(const team *t, int rank) { GPU_OK(cudaSetDevice(rank % t->gpus)); }

/* Under tools that slow kernels down, a rank may be late without being lost. */
static uint64_t timeout_ms_of_test(void) { return short_run() ? 60000 : 5000; }

static void open_team(team *t, int ranks, uint64_t timeout_ms) {
    *t = (team){.ranks = ranks, .gpus = gpus_here()};
    if (t->gpus > ranks) t->gpus = ranks;
    GPU_OK(cudaHostAlloc((void **)&t->timeouts, sizeof *t->timeouts, cudaHostAllocPortable));
    memset(t->timeouts, 0, sizeof *t->timeouts);
    uint32_t *flags[RANKS];
    for (int r = 0; r < ranks; r++) {
        use(t, r);
        for (int other = 0; other < t->gpus; other++)
            if (other != r % t->gpus && cudaDeviceEnablePeerAccess(other, 0)) cudaGetLastError();
        GPU_OK(cudaStreamCreateWithFlags(&t->stream[r], cudaStreamNonBlocking));
        flags[r] = gpu_room(IV_GPU_FLAG_WORDS * sizeof *flags[r]);
        GPU_OK(cudaMemset(flags[r], 0, IV_GPU_FLAG_WORDS * sizeof *flags[r]));
        GPU_OK(cudaDeviceSynchronize());
    }
    for (int r = 0; r < ranks; r++) {
        t->peers[r] =
            (iv_gpu_peers){.ranks = ranks, .rank = r, .timeouts = t->timeouts, .timeout_ns = timeout_ms * 1000000};
        memcpy(t->peers[r].flags, flags, sizeof flags);
    }
}

static void wait_for_all(const team *t) {
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        GPU_OK(cudaStreamSynchronize(t->stream[r]));
    }
}

static void assert_no_timeout(const team *t, const char *what) {
    if (!t->timeouts->any) return;
    for (int r = 0; r < t->ranks; r++) {
        iv_gpu_awaited a = iv_gpu_awaited_of(t->timeouts->rank[r]);
        if (t->timeouts->rank[r])
            printf("rank %d gave up waiting for block %u of rank %u, %u barriers behind\n", r, a.block, a.rank,
                   a.behind);
    }
    fail_msg("%s: some of %d ranks gave up waiting", what, t->ranks);
}

static void close_team(team *t) {
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        cudaStreamDestroy(t->stream[r]), cudaFree(t->peers[0].flags[r]);
    }
    cudaFreeHost(t->timeouts);
}

/* ---- all-reduces ---------------------------------------------------------------------------------------------- */

typedef struct problem {
    iv_gpu_allreduce_args a;
    size_t nodes, values; /* of a node */
    int owner[IV_LEAVES_MAX];
    float *source[STEPS][IV_LEAVES_MAX], *bias, *weight, *x; /* host */
    float *gpu_source[STEPS][IV_LEAVES_MAX], *gpu_node[2][IV_LEAVES_MAX], *gpu_x[RANKS], *gpu_bias[RANKS],
        *gpu_weight[RANKS], *gpu_spoilt[RANKS];
    void *gpu_normed[RANKS];
} problem;

/* Consecutive leaves for each rank, as a model cuts them. */
static void cut(problem *p, int ranks, size_t leaves) {
    iv_tree_node all[IV_LEAVES_MAX], own[IV_COVER_MAX];
    for (size_t r = 0; r < (size_t)ranks; r++) {
        size_t n = iv_tree_cover(r * leaves / (size_t)ranks, (r + 1) * leaves / (size_t)ranks, own);
        for (size_t i = 0; i < n; i++) p->owner[p->nodes] = (int)r, all[p->nodes++] = own[i];
    }
    iv_tree_order_make(all, p->nodes, &p->a.order);
}

static void fill(problem *p, rng *r, const team *t, family f) {
    size_t bytes = p->values * sizeof(float);
    p->x = random_values(r, NORMAL, IV_F32, p->values);
    p->bias = random_values(r, NORMAL, IV_F32, p->a.hidden), p->weight = random_values(r, NORMAL, IV_F32, p->a.hidden);
    for (size_t i = 0; i < p->nodes; i++) {
        use(t, p->owner[i]);
        for (int s = 0; s < STEPS; s++) {
            p->source[s][i] = random_values(r, f, IV_F32, p->values);
            p->gpu_source[s][i] = gpu_copy(p->source[s][i], bytes);
        }
        p->gpu_node[0][i] = gpu_room(bytes), p->gpu_node[1][i] = gpu_room(bytes);
    }
    for (int k = 0; k < t->ranks; k++) {
        use(t, k);
        p->gpu_x[k] = gpu_copy(p->x, bytes), p->gpu_bias[k] = gpu_copy(p->bias, p->a.hidden * 4);
        p->gpu_weight[k] = gpu_copy(p->weight, p->a.hidden * 4);
        p->gpu_normed[k] = gpu_room(p->a.rows * p->a.normed_stride * iv_dtype_bytes(p->a.type));
        p->gpu_spoilt[k] = gpu_room(bytes);
        GPU_OK(cudaMemset(p->gpu_spoilt[k], 0xff, bytes));
        GPU_OK(cudaDeviceSynchronize());
    }
}

static void release(problem *p, const team *t) {
    for (size_t i = 0; i < p->nodes; i++) {
        for (int s = 0; s < STEPS; s++) free(p->source[s][i]), cudaFree(p->gpu_source[s][i]);
        cudaFree(p->gpu_node[0][i]), cudaFree(p->gpu_node[1][i]);
    }
    for (int k = 0; k < t->ranks; k++)
        cudaFree(p->gpu_x[k]), cudaFree(p->gpu_bias[k]), cudaFree(p->gpu_weight[k]), cudaFree(p->gpu_normed[k]),
            cudaFree(p->gpu_spoilt[k]);
    free(p->x), free(p->bias), free(p->weight);
}

/* By a kernel: graphs of ranks that share a GPU also share its copy engine, which has one queue. A copy of rank 0's
 * next step, which waits for rank 0's all-reduce, would be ahead of the copy that this all-reduce waits for. */
static void put(const problem *p, const float *from, float *to, cudaStream_t s) {
    GPU_OK(iv_gpu_copy_columns(IV_F32, from, p->a.hidden, 0, p->a.hidden, p->a.rows, to, p->a.hidden, s));
}

/* All steps of one rank as a graph: a node is poisoned, written, reduced. */
static cudaGraphExec_t capture(const problem *p, const team *t, int rank) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t s = t->stream[rank];
    use(t, rank);
    GPU_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int step = 0; step < STEPS; step++) {
        iv_gpu_allreduce_args a = p->a;
        for (size_t i = 0; i < p->nodes; i++) {
            a.node[i] = p->gpu_node[step % 2][i];
            if (p->owner[i] != rank) continue;
            put(p, p->gpu_spoilt[rank], p->gpu_node[step % 2][i], s);
            put(p, p->gpu_source[step][i], p->gpu_node[step % 2][i], s);
        }
        a.x = p->gpu_x[rank], a.bias = p->a.bias ? p->gpu_bias[rank] : NULL;
        a.norm_weight = p->a.norm_weight ? p->gpu_weight[rank] : NULL;
        memcpy(a.normed, p->gpu_normed, sizeof a.normed);
        GPU_OK(iv_gpu_tree_allreduce(&t->peers[rank], &a, s));
    }
    GPU_OK(cudaStreamEndCapture(s, &graph));
    GPU_OK(cudaGraphInstantiate(&exec, graph, 0));
    GPU_OK(cudaGraphDestroy(graph));
    return exec;
}

/* The expected x. Returns how many roots differ from the plain sum of the nodes. */
static size_t want_reduced(problem *p, int step) {
    size_t differ = 0;
    for (size_t row = 0; row < p->a.rows; row++)
        for (size_t c = 0; c < p->a.hidden; c += IV_ALLREDUCE_COLUMNS) {
            const float *node[IV_LEAVES_MAX];
            size_t n = p->a.hidden - c < IV_ALLREDUCE_COLUMNS ? p->a.hidden - c : IV_ALLREDUCE_COLUMNS,
                   at = row * p->a.hidden + c;
            float root[IV_ALLREDUCE_COLUMNS] = {0};
            for (size_t i = 0; i < p->nodes; i++) node[i] = p->source[step][i] + at;
            iv_tree_allreduce(p->a.arithmetic, &p->a.order, node, NULL, n, root);
            for (size_t i = 0; i < n; i++) {
                float ahead = node[0][i];
                for (size_t k = 1; k < p->nodes; k++) ahead = ahead + node[k][i];
                differ += isfinite(root[i]) && ahead != root[i];
            }
            iv_tree_allreduce(p->a.arithmetic, &p->a.order, node, p->a.bias ? p->bias + c : NULL, n, p->x + at);
        }
    return differ;
}

static void *want_normed(const problem *p) {
    size_t hidden = p->a.hidden, stride = p->a.normed_stride;
    void *out = calloc(p->a.rows * stride, iv_dtype_bytes(p->a.type));
    float *y = malloc(hidden * sizeof *y);
    for (size_t row = 0; row < p->a.rows; row++) {
        iv_ref_rmsnorm(p->x + row * hidden, p->weight, p->a.eps, hidden, y);
        for (size_t i = 0; i < hidden; i++) put_type(p->a.type, out, row * stride + i, y[i]);
    }
    free(y);
    return out;
}

static void compare(const problem *p, const team *t) {
    void *normed = want_normed(p);
    for (int rank = 0; rank < t->ranks; rank++) {
        char what[120];
        snprintf(what, sizeof what, "%d ranks, way %d, %zu x %zu, %zu nodes: rank %d", t->ranks, (int)p->a.way,
                 p->a.rows, p->a.hidden, p->nodes, rank);
        use(t, rank);
        float *x = host_copy(p->gpu_x[rank], p->values * sizeof *x);
        for (size_t row = 0; row < p->a.rows; row++) {
            int owner = iv_gpu_allreduce_owner(&p->a, t->ranks, row);
            if (owner < 0 || owner == rank)
                assert_same_bits(what, p->x + row * p->a.hidden, x + row * p->a.hidden, p->a.hidden, 4, false);
        }
        if (p->a.norm_weight)
            assert_gpu_has(what, normed, p->gpu_normed[rank], p->a.rows * p->a.normed_stride, iv_dtype_bytes(p->a.type),
                           false);
        free(x);
    }
    free(normed);
}

static size_t allreduce_trial(rng *r, const team *t, size_t rows, size_t hidden, size_t leaves,
                              iv_gpu_allreduce_way way) {
    problem p = {.a = {.arithmetic = rng_below(r, 2) ? IV_TC16 : IV_FMA32,
                       .rows = rows,
                       .hidden = hidden,
                       .eps = 1e-6f,
                       .type = (iv_dtype)rng_below(r, 3),
                       .normed_stride = hidden + rng_below(r, 2) * 4,
                       .way = way},
                 .values = rows * hidden};
    cudaGraphExec_t exec[RANKS];
    size_t differ = 0;
    cut(&p, t->ranks, leaves);
    fill(&p, r, t, rng_below(r, 2) ? NORMAL : (family)rng_below(r, FAMILIES));
    p.a.bias = rng_below(r, 2) ? p.bias : NULL, p.a.norm_weight = rng_below(r, 8) ? p.weight : NULL;
    for (int k = 0; k < t->ranks; k++) exec[k] = capture(&p, t, k);
    for (int replay = 0; replay < REPLAYS; replay++) {
        int first = (int)rng_below(r, (size_t)t->ranks);
        for (int k = 0; k < t->ranks; k++) {
            int rank = (first + k) % t->ranks;
            use(t, rank);
            GPU_OK(cudaGraphLaunch(exec[rank], t->stream[rank]));
        }
        for (int step = 0; step < STEPS; step++) differ += want_reduced(&p, step);
    }
    wait_for_all(t);
    char what[100];
    snprintf(what, sizeof what, "way %d, %zu x %zu", (int)way, rows, hidden);
    assert_no_timeout(t, what);
    compare(&p, t);
    for (int k = 0; k < t->ranks; k++) cudaGraphExecDestroy(exec[k]);
    release(&p, t);
    return differ;
}

static void allreduces(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    rng r = rng_start("joins");
    size_t differ = 0;
    printf("on %d GPUs\n", gpus_here());
    for (int ranks = 2; ranks <= RANKS && ranks <= RANKS_A_GPU * gpus_here(); ranks++) {
        team t;
        open_team(&t, ranks, timeout_ms_of_test());
        for (size_t trial = 0; trial < (EMULATED ? trials(4, 40) : trials(12, 200)); trial++) {
            static const size_t widths[] = {64, 250, 1000, 2048, 4096, 5120};
            size_t leaves = rng_below(&r, 4) ? 8 : (size_t)1 << rng_below(&r, 4),
                   rows = 1 + rng_below(&r, 3 * trial + 1), width = widths[rng_below(&r, EMULATED ? 3 : 6)];
            differ += allreduce_trial(&r, &t, rows, width, leaves, (iv_gpu_allreduce_way)(trial % 3));
        }
        if (t.gpus == ranks && !EMULATED) allreduce_trial(&r, &t, 700, 4096, 8, IV_GPU_ALLREDUCE_TWO_SHOT);
        if (t.gpus == ranks && !EMULATED) allreduce_trial(&r, &t, 300, 4096, 8, IV_GPU_ALLREDUCE_ONE_SHOT);
        if (EMULATED && ranks == 3)
            allreduce_trial(&r, &t, 300, 64, 8, IV_GPU_ALLREDUCE_ONE_SHOT);             /* more than blocks */
        if (ranks == 2) allreduce_trial(&r, &t, 3, 30000, 8, IV_GPU_ALLREDUCE_BY_SIZE); /* too wide for shared memory */
        close_team(&t);
    }
    assert_true(differ > 0); /* the tree is not the plain sum: the comparison can fail */
}

/* ---- barriers ---------------------------------------------------------------------------------------------- */

enum { WORD = 1 << 16, ROUNDS = 40 };

/* Each rank reads the next one's word in every round. Returns how many bytes differ from that word. */
static size_t misheard(const team *t) {
    unsigned char *said[RANKS][2], *heard[RANKS];
    size_t wrong = 0;
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        said[r][0] = gpu_room(WORD), said[r][1] = gpu_room(WORD), heard[r] = gpu_room((size_t)WORD * ROUNDS);
    }
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        GPU_OK(cudaDeviceSynchronize());
    }
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        for (int i = 0; i < ROUNDS; i++) {
            GPU_OK(cudaMemsetAsync(said[r][i % 2], i * t->ranks + r, WORD, t->stream[r]));
            GPU_OK(iv_gpu_barrier(&t->peers[r], t->stream[r]));
            GPU_OK(iv_gpu_copy_columns(IV_F32, said[(r + 1) % t->ranks][i % 2], WORD / 4, 0, WORD / 4, 1,
                                       heard[r] + (size_t)WORD * (size_t)i, WORD / 4, t->stream[r]));
        }
    }
    wait_for_all(t);
    for (int r = 0; r < t->ranks; r++) {
        use(t, r);
        unsigned char *got = host_copy(heard[r], (size_t)WORD * ROUNDS);
        for (size_t i = 0; i < (size_t)WORD * ROUNDS; i++)
            wrong += got[i] != (unsigned char)((int)(i / WORD) * t->ranks + (r + 1) % t->ranks);
        free(got), cudaFree(said[r][0]), cudaFree(said[r][1]), cudaFree(heard[r]);
    }
    return wrong;
}

static void barriers(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    for (int ranks = 2; ranks <= RANKS && ranks <= RANKS_A_GPU * gpus_here(); ranks *= 2) {
        team t;
        open_team(&t, ranks, timeout_ms_of_test());
        size_t wrong = misheard(&t);
        assert_no_timeout(&t, "barriers");
        if (wrong) fail_msg("%d ranks: %zu bytes of another word or round", ranks, wrong);
        close_team(&t);
    }
}

/* All ranks write to one buffer of rank 0, repeatedly: two barriers per round separate writers from readers, as in a
 * step with several slices of logits. */
static void one_buffer_is_written_over(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    enum { N = 1 << 14 };
    for (int ranks = 2; ranks <= RANKS && ranks <= RANKS_A_GPU * gpus_here(); ranks *= 2) {
        team t;
        unsigned char *said[RANKS], *all, *heard;
        size_t bytes = (size_t)N * (size_t)ranks;
        open_team(&t, ranks, timeout_ms_of_test());
        use(&t, 0);
        all = gpu_room(bytes), heard = gpu_room(bytes * ROUNDS);
        for (int r = 0; r < ranks; r++) use(&t, r), said[r] = gpu_room(N);
        for (int r = 0; r < ranks; r++) {
            use(&t, r);
            GPU_OK(cudaDeviceSynchronize());
        }
        for (int r = 0; r < ranks; r++) {
            use(&t, r);
            for (int i = 0; i < ROUNDS; i++) {
                GPU_OK(cudaMemsetAsync(said[r], i * ranks + r, N, t.stream[r]));
                GPU_OK(iv_gpu_copy_columns(IV_F32, said[r], N / 4, 0, N / 4, 1, all + (size_t)N * (size_t)r, N / 4,
                                           t.stream[r]));
                GPU_OK(iv_gpu_barrier(&t.peers[r], t.stream[r]));
                if (r == 0)
                    GPU_OK(iv_gpu_copy_columns(IV_F32, all, bytes / 4, 0, bytes / 4, 1, heard + bytes * (size_t)i,
                                               bytes / 4, t.stream[r]));
                GPU_OK(iv_gpu_barrier(&t.peers[r], t.stream[r]));
            }
        }
        wait_for_all(&t);
        assert_no_timeout(&t, "barriers");
        use(&t, 0);
        unsigned char *got = host_copy(heard, bytes * ROUNDS);
        for (size_t i = 0; i < ROUNDS; i++)
            for (size_t j = 0; j < bytes; j++)
                if (got[bytes * i + j] != (unsigned char)(i * (size_t)ranks + j / N))
                    fail_msg("%d ranks, round %zu, byte %zu: heard %u", ranks, i, j, got[bytes * i + j]);
        free(got), cudaFree(all), cudaFree(heard);
        for (int r = 0; r < ranks; r++) cudaFree(said[r]);
        close_team(&t);
    }
}

static void timeouts_are_recorded(void **state) {
    (void)state;
    SKIP_WITHOUT_GPUS(1);
    team t;
    open_team(&t, 2, 20);
    use(&t, 1);
    GPU_OK(iv_gpu_barrier(&t.peers[1], t.stream[1]));
    wait_for_all(&t);
    assert_true(t.timeouts->any && !t.timeouts->rank[0]);
    iv_gpu_awaited a = iv_gpu_awaited_of(t.timeouts->rank[1]);
    assert_int_equal(a.rank, 0);
    assert_int_equal(a.block, 0);
    assert_int_equal(a.behind, 1);
    close_team(&t);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    iv_gpu_allreduce_args a = {.rows = 0, .hidden = 64};
    assert_int_not_equal(iv_gpu_tree_allreduce(&(iv_gpu_peers){.ranks = 2}, &a, NULL), 0);
    assert_int_not_equal(iv_gpu_barrier(&(iv_gpu_peers){.ranks = 9}, NULL), 0);
    assert_int_not_equal(iv_gpu_barrier(&(iv_gpu_peers){.ranks = 2, .rank = 2}, NULL), 0);
}

/* Rows have one owner each, in ascending order, or none has an owner. */
static void owners(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (size_t rows = 1; rows < 3000; rows = rows * 3 + 1) {
            iv_gpu_allreduce_args a = {.rows = rows, .hidden = 4096, .way = IV_GPU_ALLREDUCE_TWO_SHOT};
            int last = 0;
            for (size_t row = 0; row < rows; row++) {
                int owner = iv_gpu_allreduce_owner(&a, ranks, row);
                assert_true(ranks == 1 ? owner == -1 : owner >= last && owner < ranks);
                last = owner;
            }
            a.whole = true;
            assert_int_equal(iv_gpu_allreduce_owner(&a, ranks, 0), -1);
        }
}

/* Loading a kernel waits for a GPU on which another rank waits; ranks that share a GPU must not share a queue. */
static void set_environment(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

#endif
