/* rows_cases.h and route_cases.h on the emulated kernels, with fewer trials: row ops, copied columns, routing,
 * grouping and combining against the scalar reference. */
#include "random.h"
#define trials(usual, longest) trials((usual) / 8, (usual)*2)
#include "cuda/rows_cases.h"
#include "cuda/route_cases.h"
#undef trials
#include "cuda/emulator/emulated.h"
#include "kernels/tree_allreduce.h"

static int any_machine(void **state) {
    (void)state;
    rng r = rng_start("emulated machine");
    another_machine(&r, 20);
    return 0;
}

/* Barriers that do not wait change the sums that are folded through shared memory. */
static void planted_mistakes_are_caught(void **state) {
    (void)state;
    enum { N = 3000 };
    rng r = rng_start("emulated control");
    float *x = random_values(&r, NORMAL, IV_F32, N), want[N], got[N], one[N];
    for (size_t i = 0; i < N; i++) one[i] = 1.0f;
    iv_ref_rmsnorm(x, one, 0.0f, N, want);
    float *gpu_x = gpu_copy(x, sizeof want), *gpu_one = gpu_copy(one, sizeof one), *out = gpu_room(sizeof got);
    for (int planted = 0; planted < 2; planted++) {
        size_t caught = 0;
        for (int i = 0; i < 20; i++) {
            another_machine(&r, 4);
            emu_plant(planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT);
            int e = iv_gpu_rmsnorm(gpu_x, N, NULL, gpu_one, 0.0f, 1, IV_F32, out, N, NULL);
            if (!e) e = cudaDeviceSynchronize();
            emu_plant(EMU_NO_FAULT);
            GPU_OK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
            caught += e || memcmp(want, got, sizeof want) != 0;
        }
        printf("%s: %zu of 20 runs differ\n", fault_names[planted ? EMU_FORGET_SYNCS : EMU_NO_FAULT], caught);
        assert_true(planted ? caught > 0 : caught == 0);
    }
    cudaFree(gpu_x), cudaFree(gpu_one), cudaFree(out), free(x);
}

/* The end of a row-parallel layer on one GPU: over a 16-bit sum from a library, and over local nodes. */
static void local_allreduces(void **state) {
    (void)state;
    rng r = rng_start("local joins");
    uint32_t *flags = gpu_room(IV_GPU_FLAG_WORDS * sizeof *flags);
    for (size_t trial = 0; trial < 12; trial++) {
        size_t rows = 1 + rng_below(&r, 5), hidden = trial % 3 ? 4 * (16 + rng_below(&r, 90)) : 67, n = rows * hidden;
        iv_dtype type = rng_below(&r, 2) ? IV_BF16 : IV_F16;
        float *x = random_values(&r, NORMAL, IV_F32, n), *w = random_values(&r, NORMAL, IV_F32, hidden);
        float *sum = random_values(&r, NORMAL, IV_F32, n), *nodes[IV_LEAVES_MAX], *y = malloc(hidden * sizeof *y);
        uint16_t *halves = malloc(n * 2), *normed = calloc(n, 2);
        size_t count = trial % 2 ? (size_t)1 << rng_below(&r, 4) : 1;
        iv_tree_node all[IV_LEAVES_MAX];
        iv_gpu_allreduce_args a = {
            .arithmetic = IV_TC16, .rows = rows, .hidden = hidden, .eps = 1e-6f, .type = type, .normed_stride = hidden};
        for (size_t i = 0; i < n; i++) {
            halves[i] = type == IV_BF16 ? iv_bf16_from_f32(sum[i]) : iv_f16_from_f32(sum[i]);
            sum[i] = type == IV_BF16 ? iv_bf16_to_f32(halves[i]) : iv_f16_to_f32(halves[i]);
        }
        for (size_t i = 0; i < count; i++) {
            nodes[i] = random_values(&r, NORMAL, IV_F32, n);
            a.node[i] = gpu_copy(nodes[i], n * 4), iv_tree_cover(i * 8 / count, (i + 1) * 8 / count, &all[i]);
        }
        iv_tree_order_make(all, count, &a.order);
        a.x = gpu_copy(x, n * 4), a.norm_weight = gpu_copy(w, hidden * 4), a.normed[0] = gpu_room(n * 2);
        if (trial % 2 == 0) a.sum = gpu_copy(halves, n * 2);
        another_machine(&r, 4);
        GPU_OK(cudaMemset(flags, 0, IV_GPU_FLAG_WORDS * sizeof *flags));
        GPU_OK(iv_gpu_tree_allreduce(&(iv_gpu_peers){.ranks = 1, .flags = {flags}}, &a, NULL));
        for (size_t row = 0; row < rows; row++) {
            for (size_t c = 0; c < hidden; c += IV_ALLREDUCE_COLUMNS) {
                const float *at[IV_LEAVES_MAX];
                size_t first = row * hidden + c,
                       m = hidden - c < IV_ALLREDUCE_COLUMNS ? hidden - c : IV_ALLREDUCE_COLUMNS;
                for (size_t i = 0; i < count; i++) at[i] = nodes[i] + first;
                if (a.sum)
                    for (size_t i = 0; i < m; i++) x[first + i] = x[first + i] + sum[first + i];
                else
                    iv_tree_allreduce(IV_TC16, &a.order, at, NULL, m, x + first);
            }
            iv_ref_rmsnorm(x + row * hidden, w, a.eps, hidden, y);
            for (size_t i = 0; i < hidden; i++) put_type(type, normed, row * hidden + i, y[i]);
        }
        assert_gpu_has("joined x", x, a.x, n, 4, false);
        assert_gpu_has("joined and normed", normed, a.normed[0], n, 2, false);
        for (size_t i = 0; i < count; i++) cudaFree((void *)a.node[i]), free(nodes[i]);
        cudaFree(a.x), cudaFree((void *)a.norm_weight), cudaFree(a.normed[0]);
        if (a.sum) cudaFree((void *)a.sum);
        free(x), free(w), free(sum), free(y), free(halves), free(normed);
    }
    cudaFree(flags);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(embedding, any_machine),     cmocka_unit_test_setup(rmsnorm, any_machine),
        cmocka_unit_test_setup(additions, any_machine),     cmocka_unit_test_setup(logit_shapes, any_machine),
        cmocka_unit_test_setup(activations, any_machine),   cmocka_unit_test_setup(copies, any_machine),
        cmocka_unit_test_setup(centered_rows, any_machine), cmocka_unit_test_setup(rotations, any_machine),
        cmocka_unit_test_setup(routes, any_machine),        cmocka_unit_test_setup(packed_rows, any_machine),
        cmocka_unit_test_setup(combinations, any_machine),  cmocka_unit_test(local_allreduces),
        cmocka_unit_test(planted_mistakes_are_caught)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
