/* lookup_gradient.c: tokens sorted by id; a task is one id. */
#include "kernels/lookup_gradient.h"
#include "base/size.h"

#include <stdlib.h>
#include <string.h>

typedef struct lookup {
    int32_t id;
    uint32_t at; /* in the order of the step */
} lookup;

static int by_id(const void *a, const void *b) {
    const lookup *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

typedef struct summing {
    const iv_kernels *kernels;
    const iv_lookup_gradient_args *a;
    const lookup *sorted;
    const uint32_t *first; /* [ids + 1]: of each id among the sorted */
} summing;

static void sum_id(void *context, size_t index, size_t worker) {
    (void)worker;
    const summing *s = context;
    size_t h = s->a->h, ranks = s->a->virtual_ranks;
    enum { COLUMNS = 256 };
    float node[IV_VIRTUAL_RANKS_MAX][COLUMNS];
    for (size_t column = 0; column < h; column += COLUMNS) {
        size_t n = iv_size_min(COLUMNS, h - column);
        memset(node, 0, ranks * sizeof *node);
        for (uint32_t i = s->first[index]; i < s->first[index + 1]; i++) {
            size_t at = s->sorted[i].at;
            s->kernels->add(node[s->a->ranks[at]], s->a->dx + at * h + column, n);
        }
        for (size_t stride = 1; stride < ranks; stride *= 2)
            for (size_t v = 0; v < ranks; v += 2 * stride)
                for (size_t i = 0; i < n; i++) node[v][i] = node[v][i] + node[v + stride][i];
        memcpy(s->a->out + (size_t)s->sorted[s->first[index]].id * h + column, node[0], n * sizeof *node[0]);
    }
}

iv_status iv_lookup_gradient(const iv_compute *c, const iv_lookup_gradient_args *a, iv_error *err) {
    size_t count = a->count, ids = 0;
    lookup *sorted = malloc((count + 1) * sizeof *sorted);
    uint32_t *first = malloc((count + 1) * sizeof *first);
    if (!sorted || !first) {
        free(sorted), free(first);
        return iv_fail(err, IV_NO_MEMORY, "no memory for the embedding gradients of %zu tokens", count);
    }
    for (size_t i = 0; i < count; i++) sorted[i] = (lookup){a->ids[i], (uint32_t)i};
    qsort(sorted, count, sizeof *sorted, by_id);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || sorted[i].id != sorted[i - 1].id) first[ids++] = (uint32_t)i;
    first[ids] = (uint32_t)count;
    memset(a->out, 0, a->vocab * a->h * sizeof *a->out);
    summing s = {c->kernels, a, sorted, first};
    iv_pool_run(c->pool, ids, sum_id, &s);
    free(sorted), free(first);
    return IV_OK;
}
