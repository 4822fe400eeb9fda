/* eval_metrics.c: what the paper "Deterministic Inference across Tensor Parallel Sizes That Eliminates
 * Training-Inference Mismatch" (arXiv 2511.17826, section 5.1) measures, from records. Pure functions. */
#include "eval.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_output(const cli_record *a, const cli_record *b) {
    return a->count == b->count && (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static bool same_digest(const cli_record *a, const cli_record *b) { return strcmp(a->digest, b->digest) == 0; }

static size_t count_unique(const cli_record *const *records, size_t n,
                           bool (*same)(const cli_record *, const cli_record *)) {
    size_t unique = 0;
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++) seen = same(records[i], records[k]);
        unique += !seen;
    }
    return unique;
}

size_t cli_unique_outputs(const cli_record *const *records, size_t n) { return count_unique(records, n, same_output); }

size_t cli_unique_digests(const cli_record *const *records, size_t n) { return count_unique(records, n, same_digest); }

/* Probability that a record gives to a token at a position: its own, or that of its least likely listed token. */
static double probability(const cli_record *r, size_t position, int32_t id) {
    const iv_logprob *top = r->top + position * r->top_count;
    for (size_t i = 0; i < r->top_count; i++)
        if (top[i].id == id) return exp((double)top[i].logprob);
    return exp((double)top[r->top_count - 1].logprob);
}

static double divergence_at(const cli_record *const *records, size_t n, size_t position) {
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < records[i]->top_count; k++) {
            int32_t id = records[i]->top[position * records[i]->top_count + k].id;
            double low = 1, high = 0;
            for (size_t j = 0; j < n; j++) {
                double p = probability(records[j], position, id);
                low = fmin(low, p), high = fmax(high, p);
            }
            worst = fmax(worst, high - low);
        }
    return worst;
}

double cli_output_divergence(const cli_record *const *records, size_t n) {
    size_t positions = n ? records[0]->count : 0;
    for (size_t i = 0; i < n; i++) {
        if (records[i]->count < positions) positions = records[i]->count;
        if (records[i]->top_count == 0) return 0;
    }
    size_t compared = 0;
    double sum = 0;
    for (bool together = true; compared < positions && together; compared++) {
        sum += divergence_at(records, n, compared);
        for (size_t i = 1; i < n; i++) together &= records[i]->ids[compared] == records[0]->ids[compared];
    }
    return compared ? sum / (double)compared : 0;
}

/* ---- over everything ----------------------------------------------------------------------------------- */

/* Methods in the order of their first configuration. */
static void find_methods(const cli_configs *configs, cli_metrics *m) {
    for (size_t c = 0; c < configs->count; c++) {
        size_t i = 0;
        while (i < m->method_count && strcmp(m->methods[i].name, configs->items[c].method) != 0) i++;
        if (i == m->method_count) m->methods[m->method_count++] = (cli_method){.name = configs->items[c].method};
        m->methods[i].configs++;
        m->config_method[c] = i;
    }
}

static void measure_accuracy(const cli_records *records, cli_metrics *m) {
    for (size_t c = 0; c < records->configs; c++) {
        size_t right = 0, scored = 0;
        for (size_t p = 0; p < records->problems; p++) {
            int correct = cli_record_at(records, c, p)->correct;
            right += correct == 1, scored += correct >= 0;
        }
        m->accuracy[c] = scored ? (double)right / (double)scored : 0;
        m->methods[m->config_method[c]].accuracy_mean += m->accuracy[c];
    }
    for (size_t i = 0; i < m->method_count; i++) {
        cli_method *method = &m->methods[i];
        double squares = 0;
        method->accuracy_mean /= (double)method->configs;
        for (size_t c = 0; c < records->configs; c++)
            if (m->config_method[c] == i) squares += pow(m->accuracy[c] - method->accuracy_mean, 2);
        method->accuracy_deviation = method->configs > 1 ? sqrt(squares / (double)(method->configs - 1)) : 0;
    }
}

/* One method: group has room for all configurations. */
static void compare(const cli_records *records, size_t index, const cli_record **group, cli_metrics *m) {
    cli_method *method = &m->methods[index];
    size_t outputs = 0, digests = 0; /* sums of integers, so that a mean of ones is 1 */
    for (size_t p = 0; p < records->problems; p++) {
        size_t n = 0;
        for (size_t c = 0; c < records->configs; c++)
            if (m->config_method[c] == index) group[n++] = cli_record_at(records, c, p);
        size_t unique = cli_unique_outputs(group, n);
        double divergence = cli_output_divergence(group, n);
        m->unique[index * records->problems + p] = unique;
        m->divergence[index * records->problems + p] = divergence;
        outputs += unique;
        digests += cli_unique_digests(group, n);
        method->divergence_mean += divergence;
        if (unique > method->unique_max) method->unique_max = unique;
        method->divergence_max = fmax(method->divergence_max, divergence);
        method->steady += unique == 1;
    }
    method->unique_mean = (double)outputs / (double)records->problems;
    method->bits_mean = (double)digests / (double)records->problems;
    method->divergence_mean /= (double)records->problems;
}

int cli_metrics_make(const cli_configs *configs, const cli_dataset *dataset, const cli_records *records,
                     cli_metrics *out, iv_error *err) {
    size_t n = configs->count;
    *out = (cli_metrics){.methods = calloc(n, sizeof *out->methods),
                         .unique = calloc(n * dataset->count, sizeof *out->unique),
                         .divergence = calloc(n * dataset->count, sizeof *out->divergence),
                         .accuracy = calloc(n, sizeof *out->accuracy),
                         .config_method = calloc(n, sizeof *out->config_method)};
    const cli_record **group = calloc(n, sizeof *group);
    bool ok = out->methods && out->unique && out->divergence && out->accuracy && out->config_method && group;
    if (ok) {
        find_methods(configs, out);
        measure_accuracy(records, out);
        for (size_t i = 0; i < out->method_count; i++) compare(records, i, group, out);
    } else
        cli_metrics_free(out);
    free(group);
    return ok ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
}

void cli_metrics_free(cli_metrics *m) {
    free(m->methods), free(m->unique), free(m->divergence), free(m->accuracy), free(m->config_method);
    *m = (cli_metrics){0};
}
