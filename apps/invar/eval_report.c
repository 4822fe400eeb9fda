/* eval_report.c: an evaluation as Markdown and as JSON. */
#include "eval.h"
#include "base/json_out.h"
#include "text.h"

#include <string.h>

enum { SHOWN_PROBLEMS = 10 };

static const char *method_name(const cli_method *m) { return m->name[0] ? m->name : "as given"; }

/* ---- Markdown ------------------------------------------------------------------------------------------ */

/* Inside a table a bar would end the cell. */
static void cell(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') fputc('\\', out);
        fputc((unsigned char)*text < 0x20 ? ' ' : *text, out);
    }
}

static void write_methods(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    fputs("\n| method | configurations | unique outputs | most | problems with one output | unique bits | "
          "probability divergence (x 10^-3) | most | accuracy |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
          out);
    for (size_t i = 0; i < m->method_count; i++) {
        const cli_method *method = &m->methods[i];
        fputs("| ", out);
        cell(out, method_name(method));
        fprintf(out, " | %zu | %.2f | %zu | %zu of %zu | %.2f | %.4g | %.4g | ", method->configs, method->unique_mean,
                method->unique_max, method->steady, s->dataset->count, method->bits_mean, 1e3 * method->divergence_mean,
                1e3 * method->divergence_max);
        if (s->dataset->scored)
            fprintf(out, "%.2f %% (deviation %.2f) |\n", 100 * method->accuracy_mean, 100 * method->accuracy_deviation);
        else
            fputs("not scored |\n", out);
    }
}

static size_t tokens_of(const cli_study *s, size_t config) {
    size_t tokens = 0;
    for (size_t p = 0; p < s->dataset->count; p++) tokens += cli_record_at(s->records, config, p)->count;
    return tokens;
}

/* One number for all outputs of a configuration: a hash of their digests in order. */
static uint64_t digest_of(const cli_study *s, size_t config) {
    uint64_t hash = CLI_HASH_START;
    for (size_t p = 0; p < s->dataset->count; p++) {
        const char *digest = cli_record_at(s->records, config, p)->digest;
        hash = cli_hash(hash, digest, strlen(digest));
    }
    return hash;
}

static void write_configs(const cli_study *s, FILE *out) {
    fputs("\n| configuration | tokens | right | accuracy | all digests |\n|---|---:|---:|---:|---|\n", out);
    for (size_t c = 0; c < s->configs->count; c++) {
        fputs("| ", out);
        cell(out, s->configs->items[c].label);
        fprintf(out, " | %zu | ", tokens_of(s, c));
        if (s->dataset->scored) {
            double accuracy = s->metrics->accuracy[c];
            fprintf(out, "%.0f of %zu | %.2f %% |", accuracy * (double)s->dataset->scored, s->dataset->scored,
                    100 * accuracy);
        } else
            fputs(" | not scored |", out);
        fprintf(out, " %016llx |\n", (unsigned long long)digest_of(s, c));
    }
}

/* The first problems whose output is not always the same. */
static void write_unsteady(const cli_study *s, FILE *out) {
    const cli_metrics *m = s->metrics;
    size_t shown = 0, all = 0;
    for (size_t p = 0; p < s->dataset->count; p++) {
        bool unsteady = false;
        for (size_t i = 0; i < m->method_count; i++) unsteady |= m->unique[i * s->dataset->count + p] > 1;
        all += unsteady;
        if (!unsteady || shown == SHOWN_PROBLEMS) continue;
        if (shown++ == 0) fputs("\n| problem | unique outputs by method |\n|---|---|\n", out);
        fputs("| ", out);
        cell(out, s->dataset->items[p].id);
        fputs(" |", out);
        for (size_t i = 0; i < m->method_count; i++) {
            fputs(i ? ", " : " ", out);
            cell(out, method_name(&m->methods[i]));
            fprintf(out, ": %zu", m->unique[i * s->dataset->count + p]);
        }
        fputs(" |\n", out);
    }
    if (all > shown) fprintf(out, "\nand %zu more problems.\n", all - shown);
}

void cli_study_markdown(const cli_study *s, FILE *out) {
    fputs("# ", out);
    cell(out, s->title);
    fputs("\n\nModel ", out);
    cell(out, s->model);
    fputs(", dataset ", out);
    cell(out, s->dataset_path);
    fprintf(out, ", %zu problems", s->dataset->count);
    if (s->dataset->scored && s->dataset->scored < s->dataset->count)
        fprintf(out, ", of which %zu have no answer and are not scored", s->dataset->count - s->dataset->scored);
    fputs(".\n", out);
    write_methods(s, out);
    fputs(
        "\nUnique outputs: different token sequences of a problem over the configurations, averaged over problems; 1 "
        "is\n"
        "best. Probability divergence: the largest difference of a top-5 token's probability between configurations,\n"
        "averaged over the positions that they reach with the same tokens, then over problems. Deviation: sample\n"
        "standard deviation of the accuracy over configurations.\n",
        out);
    write_configs(s, out);
    write_unsteady(s, out);
    fprintf(out, "\nSettings: `%s`\n", s->settings);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_methods(const cli_study *s, iv_json_out *json) {
    iv_out_kv_open(json, "methods", '[');
    for (size_t i = 0; i < s->metrics->method_count; i++) {
        const cli_method *m = &s->metrics->methods[i];
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "method", method_name(m));
        iv_out_kv_uint(json, "configurations", m->configs);
        iv_out_kv_double(json, "unique_outputs", m->unique_mean);
        iv_out_kv_uint(json, "unique_outputs_max", m->unique_max);
        iv_out_kv_uint(json, "problems_with_one_output", m->steady);
        iv_out_kv_double(json, "unique_bits", m->bits_mean);
        iv_out_kv_double(json, "probability_divergence", m->divergence_mean);
        iv_out_kv_double(json, "probability_divergence_max", m->divergence_max);
        if (s->dataset->scored) {
            iv_out_kv_double(json, "accuracy", m->accuracy_mean);
            iv_out_kv_double(json, "accuracy_deviation", m->accuracy_deviation);
        }
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

static void json_configs(const cli_study *s, iv_json_out *json) {
    iv_out_kv_open(json, "configurations", '[');
    for (size_t c = 0; c < s->configs->count; c++) {
        char digest[20];
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)digest_of(s, c));
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "configuration", s->configs->items[c].label);
        iv_out_kv_text(json, "method", method_name(&s->metrics->methods[s->metrics->config_method[c]]));
        iv_out_kv_uint(json, "tokens", tokens_of(s, c));
        if (s->dataset->scored) iv_out_kv_double(json, "accuracy", s->metrics->accuracy[c]);
        iv_out_kv_text(json, "all_digests", digest);
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

static void json_problems(const cli_study *s, iv_json_out *json) {
    size_t n = s->dataset->count;
    iv_out_kv_open(json, "problems", '[');
    for (size_t p = 0; p < n; p++) {
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_text(json, "id", s->dataset->items[p].id);
        iv_out_kv_open(json, "unique_outputs", '[');
        for (size_t i = 0; i < s->metrics->method_count; i++) iv_out_kv_uint(json, NULL, s->metrics->unique[i * n + p]);
        iv_out_close(json, ']');
        iv_out_kv_open(json, "probability_divergence", '[');
        for (size_t i = 0; i < s->metrics->method_count; i++)
            iv_out_kv_double(json, NULL, s->metrics->divergence[i * n + p]);
        iv_out_close(json, ']');
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

void cli_study_json(const cli_study *s, FILE *out) {
    iv_json_out json = {.spaced = true, .file = out};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "title", s->title);
    iv_out_kv_text(&json, "model", s->model);
    iv_out_kv_text(&json, "dataset", s->dataset_path);
    fprintf(out, ", \"settings\": %s", s->settings);
    iv_out_kv_uint(&json, "scored", s->dataset->scored);
    json_methods(s, &json);
    json_configs(s, &json);
    json_problems(s, &json);
    iv_out_close(&json, '}');
    fputc('\n', out);
}
