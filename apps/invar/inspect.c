/* inspect.c: invar inspect and invar logits. */
#include "commands.h"
#include "input.h"
#include "base/json_out.h"
#include "invar_model.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

static void write_context(iv_json_out *json, const iv_context_info *c) {
    iv_out_kv_open(json, "context", '{');
    iv_out_kv_uint(json, "tokens", c->tokens);
    iv_out_kv_uint(json, "page_bytes", c->page_bytes);
    iv_out_kv_open(json, "groups", '[');
    for (size_t i = 0; i < c->count; i++) {
        const iv_kv_need *n = &c->need[i];
        iv_out_open(json, '{');
        iv_out_kv_int(json, "window", n->window);
        iv_out_kv_uint(json, "layers", n->layers);
        iv_out_kv_uint(json, "key_dim", n->key_dim);
        iv_out_kv_uint(json, "value_dim", n->value_dim);
        iv_out_kv_uint(json, "tables", n->tables);
        iv_out_kv_uint(json, "pages", n->pages);
        iv_out_kv_uint(json, "bytes", n->bytes);
        iv_out_kv_uint(json, "pages_kept", n->pages_kept);
        iv_out_kv_uint(json, "bytes_kept", n->bytes_kept);
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
    iv_out_kv_uint(json, "bytes", c->bytes);
    iv_out_kv_uint(json, "bytes_kept", c->bytes_kept);
    iv_out_kv_uint(json, "longest", c->longest);
    iv_out_close(json, '}');
}

static void write_ranks(iv_json_out *json, const iv_ranks_info *r) {
    iv_out_kv_open(json, "ranks", '[');
    for (size_t i = 0; i < r->ranks; i++) {
        iv_out_open(json, '{');
        iv_out_kv_uint(json, "weight_bytes", r->rank[i].weight_bytes);
        iv_out_kv_uint(json, "kv_bytes_per_token", r->rank[i].kv_bytes_per_token);
        iv_out_kv_uint(json, "heads", r->rank[i].heads);
        iv_out_kv_uint(json, "kv_heads", r->rank[i].kv_heads);
        iv_out_kv_uint(json, "experts", r->rank[i].experts);
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
}

/* ranks: of --tensor-parallel-size, or none. */
static void write_json(FILE *file, const char *model, const iv_model_info *m, const iv_context_info *c,
                       const iv_ranks_info *ranks, const iv_text *configuration) {
    iv_json_out json = {.spaced = true, .file = file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", model);
    iv_out_kv_text(&json, "model_type", m->model_type);
    iv_out_kv_text(&json, "dtype", m->dtype);
    iv_out_kv_text(&json, "stored_dtype", m->shards ? m->stored_dtype : NULL);
    iv_out_kv_bool(&json, "weights_found", m->shards > 0);
    iv_out_kv_uint(&json, "parameters", m->parameters);
    iv_out_kv_uint(&json, "tensors", m->tensors);
    iv_out_kv_uint(&json, "shards", m->shards);
    iv_out_kv_int(&json, "layers", m->layers);
    iv_out_kv_int(&json, "hidden_size", m->hidden_size);
    iv_out_kv_int(&json, "intermediate_size", m->intermediate_size);
    iv_out_kv_int(&json, "heads", m->heads);
    iv_out_kv_int(&json, "kv_heads", m->kv_heads);
    iv_out_kv_int(&json, "head_dim", m->head_dim);
    iv_out_kv_int(&json, "vocab_size", m->vocab_size);
    iv_out_kv_int(&json, "max_positions", m->max_positions);
    iv_out_kv_int(&json, "experts", m->experts);
    iv_out_kv_int(&json, "experts_per_token", m->experts_per_token);
    iv_out_kv_int(&json, "sliding_window", m->sliding_window);
    iv_out_kv_bool(&json, "tied_embeddings", m->tied_embeddings);
    iv_out_key(&json, "configuration");
    iv_out_raw(&json, configuration->data, configuration->bytes);
    iv_out_kv_bool(&json, "index_unread", m->index_unread);
    iv_out_kv_bool(&json, "activations_unquantized", m->activations_unquantized);
    iv_out_kv_uint(&json, "file_bytes", m->file_bytes);
    iv_out_kv_uint(&json, "weight_bytes", m->weight_bytes);
    iv_out_kv_uint(&json, "expanded_bytes", m->expanded_bytes);
    iv_out_kv_uint(&json, "int8_bytes", m->int8_bytes);
    iv_out_kv_uint(&json, "kv_bytes_per_token", m->kv_bytes_per_token);
    iv_out_kv_uint(&json, "linear_layers", m->linear_layers);
    iv_out_kv_uint(&json, "state_bytes", m->state_bytes);
    iv_out_kv_uint(&json, "open_block_bytes", m->open_block_bytes);
    iv_out_kv_uint(&json, "adapter_bytes", m->adapter_bytes);
    iv_out_kv_uint(&json, "memory_available", m->memory_available);
    iv_out_kv_uint(&json, "tokens_that_fit", m->tokens_that_fit);
    write_context(&json, c);
    if (ranks->ranks) write_ranks(&json, ranks);
    iv_out_close(&json, '}');
    fputc('\n', file);
}

static void print_bytes(FILE *out, const char *name, uint64_t bytes) {
    char human[24];
    fprintf(out, "  %-18s %s (%llu bytes)\n", name, cli_human_bytes((double)bytes, human), (unsigned long long)bytes);
}

static void print_count(FILE *out, const char *name, int64_t count) {
    fprintf(out, "  %-18s %lld\n", name, (long long)count);
}

static void print_shape(FILE *out, const iv_model_info *m) {
    print_count(out, "layers", m->layers);
    print_count(out, "hidden size", m->hidden_size);
    print_count(out, "intermediate size", m->intermediate_size);
    fprintf(out, "  %-18s %lld, %lld for keys and values, dimension %lld\n", "heads", (long long)m->heads,
            (long long)m->kv_heads, (long long)m->head_dim);
    if (m->experts)
        fprintf(out, "  %-18s %lld, %lld per token\n", "experts", (long long)m->experts,
                (long long)m->experts_per_token);
    if (m->linear_layers) print_count(out, "linear attention", (int64_t)m->linear_layers);
    if (m->sliding_window) print_count(out, "sliding window", m->sliding_window);
    fprintf(out, "  %-18s %lld%s\n", "vocabulary", (long long)m->vocab_size,
            m->tied_embeddings ? ", embeddings tied" : "");
    print_count(out, "positions", m->max_positions);
}

static void print_files(FILE *out, const iv_model_info *m) {
    if (!m->shards) {
        fprintf(out, "  %-18s none: model.safetensors and model.safetensors.index.json are missing;\n", "weights");
        fprintf(out, "  %-18s this report is based on config.json\n", "");
        return;
    }
    fprintf(out, "  %-18s %zu in %zu %s, mostly %s\n", "tensors", m->tensors, m->shards,
            m->shards == 1 ? "file" : "files", m->stored_dtype);
    print_bytes(out, "size", m->file_bytes);
    if (m->activations_unquantized)
        fprintf(out, "  %-18s %s, though the files ask for it\n", "activations",
                m->int8_bytes ? "quantized by --arithmetic i8 and i8x2 alone" : "not quantized");
    if (m->index_unread) fprintf(out, "  %-18s model.safetensors; model.safetensors.index.json is ignored\n", "read");
}

static void print_context(FILE *out, cli_style s, const iv_context_info *c) {
    char human[24], kept[24];
    fprintf(out, "\n%sKV cache of %zu tokens%s\n", s.bold, c->tokens, s.plain);
    for (size_t i = 0; i < c->count; i++) {
        const iv_kv_need *n = &c->need[i];
        char layers[64];
        snprintf(layers, sizeof layers, "%zu %s", n->layers, n->layers == 1 ? "layer" : "layers");
        fprintf(out, "  %-18s %llu pages, %s", layers, (unsigned long long)n->pages,
                cli_human_bytes((double)n->bytes, human));
        if (n->window < 0)
            fprintf(out, ": the last chunk of %lld positions (of all: %llu pages, %s)", (long long)-n->window,
                    (unsigned long long)n->pages_kept, cli_human_bytes((double)n->bytes_kept, kept));
        else if (n->window)
            fprintf(out, ": the last %lld positions (of all: %llu pages, %s)", (long long)n->window,
                    (unsigned long long)n->pages_kept, cli_human_bytes((double)n->bytes_kept, kept));
        fprintf(out, "\n");
    }
    print_bytes(out, "together", c->bytes);
    if (c->longest) fprintf(out, "  %-18s %llu tokens\n", "longest that fits", (unsigned long long)c->longest);
}

static void print_table(FILE *out, cli_style s, const char *model, const iv_model_info *m) {
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    double human = (double)m->parameters;
    size_t unit = 0;
    while (human >= 999.5 && unit < 4) human /= 1000, unit++;
    fprintf(out, "%s%s%s\n", s.bold, model, s.plain);
    fprintf(out, "  %-18s %s\n", "architecture", m->model_type);
    fprintf(out, "  %-18s %.3g%s (%llu)\n", "parameters", human, units[unit], (unsigned long long)m->parameters);
    print_shape(out, m);
    fprintf(out, "\n%sFiles%s\n", s.bold, s.plain);
    print_files(out, m);
    fprintf(out, "\n%sIn memory as %s%s\n", s.bold, m->dtype, s.plain);
    print_bytes(out, "weights", m->weight_bytes);
    if (m->expanded_bytes != m->weight_bytes) print_bytes(out, "expanded", m->expanded_bytes);
    if (m->int8_bytes) print_bytes(out, "in i8, i8x2", m->int8_bytes);
    print_bytes(out, "cache per token", m->kv_bytes_per_token);
    if (m->linear_layers) {
        print_bytes(out, "state of a prefix", m->state_bytes);
        print_bytes(out, "per sequence", m->state_bytes + m->state_bytes / 4 + m->open_block_bytes);
    }
    print_bytes(out, "an adapter", m->adapter_bytes);
    print_bytes(out, "memory available", m->memory_available);
    if (m->tokens_that_fit)
        fprintf(out, "  %-18s %llu\n", "tokens that fit", (unsigned long long)m->tokens_that_fit);
    else
        fprintf(out, "  %-18s none: the weights need all of it\n", "tokens that fit");
}

static void print_ranks(FILE *out, cli_style s, const iv_ranks_info *r, bool experts) {
    char weights[24], token[24];
    if (!r->ranks) return;
    fprintf(out, "\n%sOver %zu %s%s\n", s.bold, r->ranks, r->ranks == 1 ? "rank" : "ranks", s.plain);
    for (size_t i = 0; i < r->ranks; i++) {
        char name[24];
        snprintf(name, sizeof name, "rank %zu", i);
        fprintf(out, "  %-18s %s of weights, %s of cache per token, %zu heads", name,
                cli_human_bytes((double)r->rank[i].weight_bytes, weights),
                cli_human_bytes((double)r->rank[i].kv_bytes_per_token, token), r->rank[i].heads);
        if (experts) fprintf(out, ", %zu whole experts", r->rank[i].experts);
        fprintf(out, "\n");
    }
}

int cli_inspect(const cli_args *args, iv_error *err) {
    char path[CLI_PATH_BYTES];
    iv_model_info info;
    if (cli_model_path(args->operands[0], path, err) != CLI_OK) return CLI_FAILED;
    if (iv_inspect(path, cli_text(args, "dtype", "auto"), &info, err) != IV_OK) return CLI_FAILED;
    cli_warn_of_generation(info.generation_unapplied);
    iv_context_info context;
    size_t tokens = (size_t)cli_count(args, "max-model-len", 0);
    if (iv_inspect_context(path, cli_text(args, "dtype", "auto"), tokens, &context, err) != IV_OK) return CLI_FAILED;
    iv_ranks_info ranks = {0};
    size_t count = (size_t)cli_count(args, "tensor-parallel-size", 0);
    if (count && iv_inspect_ranks(path, cli_text(args, "dtype", "auto"), count, &ranks, err) != IV_OK)
        return CLI_FAILED;
    iv_text configuration;
    if (iv_inspect_config(path, &configuration, err) != IV_OK) return CLI_FAILED;
    cli_buffer buffer;
    int opened = cli_buffer_open(&buffer, err);
    if (opened == CLI_OK && cli_has(args, "json"))
        write_json(buffer.file, args->operands[0], &info, &context, &ranks, &configuration);
    else if (opened == CLI_OK) {
        print_table(buffer.file, cli_style_of(1), args->operands[0], &info);
        print_context(buffer.file, cli_style_of(1), &context);
        print_ranks(buffer.file, cli_style_of(1), &ranks, info.experts > 0);
    }
    iv_text_free(&configuration);
    if (opened != CLI_OK) return CLI_FAILED;
    return cli_buffer_out(&buffer, err);
}

/* ---- logits -------------------------------------------------------------------------------------------- */

static int write_text_logits(const cli_args *args, const char *text, iv_engine *engine, const char *path,
                             iv_error *err) {
    iv_ids ids = {0};
    iv_status status = iv_tokenize(iv_engine_text_model(engine), text, strlen(text), true, &ids, err);
    if (status == IV_OK)
        status = iv_engine_write_logits_with(engine, cli_lora_name(args), ids.data, ids.count, path, err);
    iv_ids_free(&ids);
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

static int write_ids_logits(const cli_args *args, const char *list, iv_engine *engine, const char *path,
                            iv_error *err) {
    int32_t *ids;
    size_t count;
    int code = cli_read_ids(list, &ids, &count, err);
    if (code == CLI_OK && iv_engine_write_logits_with(engine, cli_lora_name(args), ids, count, path, err) != IV_OK)
        code = CLI_FAILED;
    free(ids);
    return code;
}

int cli_logits(const cli_args *args, iv_error *err) {
    const char *path = cli_text(args, "out", NULL), *list = cli_text(args, "ids", NULL),
               *text = cli_text(args, "text", NULL);
    if (!list == !text) return cli_fail(err, CLI_USAGE, "wanted --ids or --text, found %s", list ? "both" : "neither");
    if (!path) return cli_fail(err, CLI_USAGE, "wanted --out FILE, the safetensors file to write");
    iv_engine *engine;
    int code = cli_engine_open(args, &engine, err);
    if (code != CLI_OK) return code;
    code = text ? write_text_logits(args, text, engine, path, err) : write_ids_logits(args, list, engine, path, err);
    iv_engine_close(engine);
    return code;
}
