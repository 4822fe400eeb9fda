/* chain_stress.cuh: bench_chain --stress: races. Graphs of many launches that overlap (programmatic dependent launch),
 * each with weights and outputs of its own, are replayed for a given time; all outputs of every replay are compared
 * with the reference bit by bit on the device. Included by chain.cu alone.
 *
 * Steps of the engine: for every model, tensor parallelism, type and several counts of rows, decoder layers (qkv, o,
 * gate_up, down) and the head with the engine's choice and epilogues; down reads what gate_up has written. Its
 * reference is the wgmma family alone. Chains: Qwen3-32B's head in two ranks at 64 rows by each configuration of
 * chain.cuh; its reference is chain_reference. */
#ifndef IV_BENCH_CHAIN_STRESS_CUH
#define IV_BENCH_CHAIN_STRESS_CUH

enum { STRESS_LAUNCHES = 64, STRESS_LAYERS = 6, STRESS_CHAINS = 12, STRESS_REPORTS = 20 };
static const size_t arena_bytes = (size_t)512 << 20;
static const int stress_rows[] = {1, 2, 3, 7, 8, 9, 12, 16, 17, 24, 31, 32};
enum { STRESS_ROWS = sizeof stress_rows / sizeof *stress_rows };

typedef struct stress_launch {
    problem p;
    const uint16_t *weights;
    iv_gpu_epilogue epilogue;
    size_t at, bytes; /* of its outputs in an arena */
    size_t x_at;      /* in the same arena; SIZE_MAX: the common x */
    const candidate *chain;
} stress_launch;

typedef struct stress {
    bench *b;
    bool quick;
    iv_dtype type;
    char *got, *right; /* arenas */
    stress_launch all[STRESS_LAUNCHES];
    int count;
    size_t used, next_weights; /* bytes of an arena; where the next weights begin */
    size_t replays, launches, mma_launches, values, wrong, reports;
} stress;

static stress_launch *add_launch(stress *s, const problem *p) {
    stress_launch *l = &s->all[s->count++];
    size_t bytes = (size_t)p->n * (size_t)p->k * 2;
    *l = {};
    l->p = *p, l->x_at = SIZE_MAX;
    l->epilogue = p->layer == GATE_UP                 ? IV_GPU_SWIGLU
                  : p->layer == O || p->layer == DOWN ? IV_GPU_RESIDUAL
                                                      : IV_GPU_STORE;
    if (s->next_weights + bytes > weights_bytes) s->next_weights = 0;
    l->weights = s->b->weights + s->next_weights / 2;
    s->next_weights += (bytes + 1023) / 1024 * 1024;
    l->at = s->used, l->bytes = (size_t)p->rows * (size_t)p->n * (l->epilogue == IV_GPU_SWIGLU ? 1 : 4);
    s->used += (l->bytes + 1023) / 1024 * 1024;
    if (s->used > arena_bytes)
        fprintf(stderr, "bench_chain: the outputs of a graph exceed %zu\n", arena_bytes), exit(1);
    return l;
}

/* A launch with its outputs in `arena`; with wgmma only, or as chosen. Returns the family. */
static iv_gpu_family launch_one(const stress *s, const stress_launch *l, char *arena, form of) {
    bench b = *s->b;
    b.out = (float *)(arena + l->at);
    if (l->chain) {
        launch(&b, &l->p, l->chain, l->weights);
        return IV_GPU_MMA;
    }
    iv_gpu_linear_args a = engine_args(&b, &l->p, l->weights);
    a.type = s->type, a.w.type = s->type, a.epilogue = l->epilogue;
    if (l->epilogue == IV_GPU_SWIGLU) a.out_stride /= 2;
    if (l->x_at != SIZE_MAX) a.x = arena + l->x_at, a.x_rows = a.rows;
    iv_gpu_linear_config c = engine_config(&a, of);
    CHECK(iv_gpu_linear_with(&a, &c, (iv_gpu_stream)b.stream));
    return c.family;
}

/* Where the outputs of the last replay are wrong. */
static void explain(stress *s) {
    for (int i = 0; i < s->count && s->reports < STRESS_REPORTS; i++) {
        const stress_launch *l = &s->all[i];
        char *got = (char *)malloc(l->bytes), *right = (char *)malloc(l->bytes);
        size_t element = l->epilogue == IV_GPU_SWIGLU ? 2 : 4, row = l->bytes / (size_t)l->p.rows / element;
        size_t wrong = 0, low = row, high = 0;
        unsigned long long rows = 0;
        CHECK(cudaMemcpy(got, s->got + l->at, l->bytes, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(right, s->right + l->at, l->bytes, cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < l->bytes / element; j++) {
            if (memcmp(got + j * element, right + j * element, element) == 0) continue;
            wrong++, rows |= 1ull << (j / row);
            low = j % row < low ? j % row : low, high = j % row > high ? j % row : high;
        }
        if (wrong)
            printf(
                "MISMATCH replay %zu, launch %d of %d, %s %s n %d k %d rows %d%s%s: %zu of %zu values, outputs %zu to "
                "%zu, rows %#llx\n",
                s->replays, i, s->count, s->type == IV_BF16 ? "bf16" : "f16", layer_names[l->p.layer], l->p.n, l->p.k,
                l->p.rows, l->chain ? ", chain " : "", l->chain ? l->chain->name : "", wrong, l->bytes / element, low,
                high, rows),
                s->reports++;
        free(got), free(right);
    }
    fflush(stdout);
}

/* Replays the launches until `end`, three times at least. */
static void replay_all(stress *s, double end) {
    bench *b = s->b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t words = s->used / 4, mma = 0;
    unsigned long long wrong;
    CHECK(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < s->count; i++) mma += launch_one(s, &s->all[i], s->got, ENGINE) == IV_GPU_MMA;
    CHECK(cudaStreamEndCapture(b->stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    for (int turn = 0; turn < 3 || now() < end; turn++) {
        CHECK(cudaMemsetAsync(s->got, 0, s->used, b->stream));
        CHECK(cudaMemsetAsync(b->count, 0, sizeof *b->count, b->stream));
        CHECK(cudaGraphLaunch(exec, b->stream));
        compare_kernel<<<264, 256, 0, b->stream>>>((const uint32_t *)s->got, (const uint32_t *)s->right, words,
                                                   b->count);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpyAsync(&wrong, b->count, sizeof wrong, cudaMemcpyDeviceToHost, b->stream));
        CHECK(cudaStreamSynchronize(b->stream));
        s->replays++, s->launches += (size_t)s->count, s->mma_launches += mma, s->values += words, s->wrong += wrong;
        if (wrong && s->reports < STRESS_REPORTS) explain(s);
    }
    CHECK(cudaGraphExecDestroy(exec));
}

static void stress_step(stress *s, const model *m, int tp, int rows, double end) {
    s->count = 0, s->used = 0;
    for (int layer = 0; layer < (s->quick ? 1 : STRESS_LAYERS) * HEAD; layer++) {
        problem p = problem_of(m, layer % HEAD, tp, rows);
        size_t act = layer % HEAD == DOWN ? s->all[s->count - 1].at : SIZE_MAX;
        add_launch(s, &p)->x_at = act;
    }
    problem head = problem_of(m, HEAD, tp, rows);
    if (!s->quick) add_launch(s, &head);
    CHECK(cudaMemsetAsync(s->right, 0, s->used, s->b->stream));
    for (int i = 0; i < s->count; i++) launch_one(s, &s->all[i], s->right, WGMMA);
    replay_all(s, end);
}

static void stress_chain(stress *s, const problem *p, const candidate *c, double end) {
    int groups = (p->rows + 7) / 8;
    s->count = 0, s->used = 0, s->next_weights = 0;
    for (int i = 0; i < STRESS_CHAINS; i++) {
        stress_launch *l = add_launch(s, p);
        l->chain = c;
        chain_reference<<<(unsigned)(p->n / 16), (unsigned)(groups * 32), 0, s->b->stream>>>(
            l->weights, s->b->x, (float *)(s->right + l->at), p->n, p->k, c->leaves, p->rows);
        CHECK(cudaGetLastError());
    }
    replay_all(s, end);
}

static void fill_inputs(bench *b, iv_dtype type) {
    fill_kernel<<<2048, 256, 0, b->stream>>>(b->weights, weights_bytes / 2, 1, 0.05f, type);
    fill_kernel<<<2048, 256, 0, b->stream>>>(b->x, (size_t)X_ROWS * 28672, 2, 1.0f, type);
    CHECK(cudaGetLastError());
}

static void report(const stress *s, const char *what) {
    printf("%s: %zu replays, %zu launches, %zu on mma.sync, %zu words compared, %zu wrong\n", what, s->replays,
           s->launches, s->mma_launches, s->values, s->wrong);
    fflush(stdout);
}

/* All steps of a type, each for its share of the time. */
static size_t stress_engine(stress *s, iv_dtype type, double end) {
    int left = (int)(sizeof models / sizeof *models) * 4 * STRESS_ROWS;
    s->type = type;
    fill_inputs(s->b, type);
    for (int r = 0; r < STRESS_ROWS; r++)
        for (const model &m : models)
            for (int tp = 1; tp <= 8; tp *= 2, left--) {
                double from = now();
                if (s->quick && (&m != models || tp < 8)) continue;
                stress_step(s, &m, tp, stress_rows[r * 5 % STRESS_ROWS], from + (end - from) / left);
            }
    report(s, type == IV_BF16 ? "engine, bf16" : "engine, f16");
    return s->wrong;
}

/* Returns the number of wrong words. A quarter of the time is for the chains. Quick, as under compute-sanitizer: a
 * layer of one small rank. */
static size_t run_stress(bench *b, double seconds, bool quick) {
    static stress s[3];
    static candidate all[CANDIDATES];
    char *arenas[2];
    size_t wrong = 0;
    double begun = now();
    for (char *&arena : arenas) CHECK(cudaMalloc(&arena, arena_bytes));
    for (stress &one : s) one.b = b, one.quick = quick, one.got = arenas[0], one.right = arenas[1];
    problem p = problem_of(&models[1], HEAD, 2, 64);
    int count = quick ? 0 : candidates_of(b, &p, all), left = 0;
    for (int i = 0; i < count; i++) left += all[i].w && all[i].leaves == 1 ? 1 : 0;
    s[0].type = IV_BF16;
    for (int i = 0; i < count; i++) {
        if (!all[i].w || all[i].leaves != 1) continue;
        double from = now(), end = begun + seconds / 4;
        stress_chain(&s[0], &p, &all[i], from + (end - from) / left--);
    }
    report(&s[0], "chains, bf16");
    wrong += s[0].wrong;
    wrong += stress_engine(&s[1], IV_BF16, begun + seconds * 5 / 8);
    wrong += stress_engine(&s[2], IV_F16, begun + seconds);
    for (char *arena : arenas) CHECK(cudaFree(arena));
    return wrong;
}

#endif
