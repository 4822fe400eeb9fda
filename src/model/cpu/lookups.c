/* lookups.c: the gradient of the embedding's rows. Tokens of one id are added in the order of the axis inside a virtual
 * rank, without padding; virtual ranks in the tree. */
#include "base/size.h"
#include "model/cpu/learner_state.h"

#include <stdlib.h>
#include <string.h>

typedef struct lookup {
    int32_t id;
    uint32_t at; /* in the order of the step */
} lookup;

static iv_status reserve(iv_cpu_learner *l, size_t more, iv_error *err) {
    size_t h = (size_t)l->model->config.hidden_size, wanted, bytes;
    if (!iv_size_add(l->lookup_count, more, &wanted) || !iv_size_mul(wanted, h * sizeof(float), &bytes) ||
        wanted > UINT32_MAX)
        return iv_fail(err, IV_LIMIT, "a step of %zu tokens is too large", wanted);
    if (wanted <= l->lookup_max) return IV_OK;
    wanted = iv_size_max(wanted, l->lookup_max + l->lookup_max / 2);
    float *rows = realloc(l->lookups, wanted * h * sizeof *rows);
    if (rows) l->lookups = rows;
    int32_t *ids = rows ? realloc(l->lookup_ids, wanted * sizeof *ids) : NULL;
    if (ids) l->lookup_ids = ids;
    uint32_t *ranks = ids ? realloc(l->lookup_ranks, wanted * sizeof *ranks) : NULL;
    if (!ranks) return iv_fail(err, IV_NO_MEMORY, "no memory for the embedding gradients of %zu tokens", wanted);
    l->lookup_ranks = ranks, l->lookup_max = wanted;
    return IV_OK;
}

static int by_id(const void *a, const void *b) {
    const lookup *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

typedef struct summing {
    const iv_cpu_learner *l;
    const lookup *sorted;
    const uint32_t *first; /* [ids + 1]: of each id among the sorted */
    float *out;            /* [vocab][hidden] */
} summing;

static void sum_id(void *context, size_t index, size_t worker) {
    (void)worker;
    const summing *s = context;
    const iv_cpu_learner *l = s->l;
    size_t h = (size_t)l->model->config.hidden_size, ranks = l->step->ranks;
    enum { COLUMNS = 256 };
    float node[IV_VIRTUAL_RANKS_MAX][COLUMNS];
    for (size_t column = 0; column < h; column += COLUMNS) {
        size_t n = iv_size_min(COLUMNS, h - column);
        memset(node, 0, ranks * sizeof *node);
        for (uint32_t i = s->first[index]; i < s->first[index + 1]; i++) {
            size_t at = s->sorted[i].at;
            l->kernels->add(node[l->lookup_ranks[at]], l->lookups + at * h + column, n);
        }
        for (size_t stride = 1; stride < ranks; stride *= 2)
            for (size_t v = 0; v < ranks; v += 2 * stride)
                for (size_t i = 0; i < n; i++) node[v][i] = node[v][i] + node[v + stride][i];
        memcpy(s->out + (size_t)s->sorted[s->first[index]].id * h + column, node[0], n * sizeof *node[0]);
    }
}

static iv_status finish(iv_cpu_learner *l, iv_error *err) {
    size_t count = l->lookup_count, ids = 0;
    lookup *sorted = malloc((count + 1) * sizeof *sorted);
    uint32_t *first = malloc((count + 1) * sizeof *first);
    if (!sorted || !first) {
        free(sorted), free(first);
        return iv_fail(err, IV_NO_MEMORY, "no memory for the embedding gradients of %zu tokens", count);
    }
    for (size_t i = 0; i < count; i++) sorted[i] = (lookup){l->lookup_ids[i], (uint32_t)i};
    qsort(sorted, count, sizeof *sorted, by_id);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || sorted[i].id != sorted[i - 1].id) first[ids++] = (uint32_t)i;
    first[ids] = (uint32_t)count;
    const iv_tensor *t = l->names->embedding_tensor;
    float *out = l->step->sums.sum + (l->tied_offset ? l->tied_offset : t->offset);
    memset(out, 0, t->rows * t->columns * sizeof *out);
    summing s = {l, sorted, first, out};
    iv_pool_run(l->compute.pool, ids, sum_id, &s);
    free(sorted), free(first);
    l->lookup_count = 0;
    return IV_OK;
}

iv_status iv_lookups_add(iv_cpu_learner *l, iv_error *err) {
    size_t h = (size_t)l->model->config.hidden_size, tokens = l->batch.tokens;
    IV_TRY(reserve(l, tokens, err));
    memcpy(l->lookups + l->lookup_count * h, l->dx, tokens * h * sizeof *l->dx);
    memcpy(l->lookup_ids + l->lookup_count, l->ids, tokens * sizeof *l->ids);
    for (size_t q = l->from, at = l->lookup_count; q < l->to; q++)
        for (size_t t = 0; t < l->step->sequences[q].count; t++)
            l->lookup_ranks[at++] = (uint32_t)l->step->sequences[q].rank;
    l->lookup_count += tokens;
    return l->to == l->step->count ? finish(l, err) : IV_OK;
}

void iv_lookups_close(iv_cpu_learner *l) { free(l->lookups), free(l->lookup_ids), free(l->lookup_ranks); }
