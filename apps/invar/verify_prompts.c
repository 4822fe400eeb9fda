/* verify_prompts.c: built-in prompts and prompt files. Invariant: the ids of every request are in the vocabulary, and
 * its prompt and answer fit in the model's positions. */
#include "verify.h"
#include "answer.h"
#include "input.h"
#include "stats.h"
#include "text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static iv_request plain_request(size_t max_tokens, uint64_t seed) {
    return (iv_request){.size = sizeof(iv_request),
                        .max_tokens = max_tokens,
                        .top_p = 1,
                        .repetition_penalty = 1,
                        .has_seed = true,
                        .seed = seed,
                        .logprobs = -1,
                        .prompt_logprobs = -1,
                        .keep_logits = true};
}

void verify_prompts_free(verify_prompts *prompts) {
    for (size_t i = 0; i < prompts->count; i++) free(prompts->items[i].ids);
    free(prompts->items);
    *prompts = (verify_prompts){0};
}

/* The next prompt, with room for `tokens` ids; NULL without memory. */
static verify_prompt *add_prompt(verify_prompts *p, size_t tokens, iv_request request) {
    if (p->count % 64 == 0) {
        verify_prompt *more = realloc(p->items, (p->count + 64) * sizeof *more);
        if (!more) return NULL;
        p->items = more;
    }
    verify_prompt *item = &p->items[p->count];
    *item = (verify_prompt){.ids = calloc(tokens, sizeof *item->ids), .request = request};
    if (!item->ids) return NULL;
    item->request.ids = item->ids;
    item->request.id_count = tokens;
    size_t whole = tokens + request.max_tokens;
    if (whole > p->longest) p->longest = whole;
    p->prompt_tokens += tokens;
    p->answer_tokens += request.max_tokens;
    p->count++;
    return item;
}

/* ---- built in ------------------------------------------------------------------------------------------ */

static void vary_sampling(iv_request *r, size_t i) {
    if (i % 3 == 0) return; /* greedy */
    r->temperature = i % 3 == 1 ? 1.0f : 0.8f;
    if (i % 3 == 2) r->top_p = 0.9f, r->top_k = 40;
    if (i % 6 == 5) r->repetition_penalty = 1.1f, r->presence_penalty = 0.5f;
}

int verify_prompts_make(const iv_model_info *model, size_t max_tokens, verify_prompts *out, iv_error *err) {
    static const size_t lengths[] = {1,  2,  3,   5,   9,   17,  31,  33,  48,  63,  64,  65,
                                     66, 80, 100, 127, 128, 129, 130, 192, 255, 256, 257, 300};
    *out = (verify_prompts){0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] + max_tokens > (size_t)model->max_positions) continue;
        iv_request r = plain_request(max_tokens, 1000 + i);
        r.ignore_eos = true;
        vary_sampling(&r, i);
        verify_prompt *item = add_prompt(out, lengths[i], r);
        if (!item) {
            verify_prompts_free(out);
            return cli_fail(err, CLI_FAILED, "out of memory");
        }
        uint64_t state = i % 6 == 0 ? 0 : i;                        /* every sixth has a common prefix */
        size_t fresh = i % 6 == 3 && lengths[i] > 7 ? 7 : SIZE_MAX; /* others repeat, so that drafts are accepted */
        for (size_t t = 0; t < lengths[i]; t++)
            item->ids[t] =
                t < fresh ? (int32_t)(cli_random(&state) % (uint64_t)model->vocab_size) : item->ids[t - fresh];
    }
    if (out->count) return CLI_OK;
    return cli_fail(err, CLI_FAILED, "--max-tokens %zu: the model has %lld positions", max_tokens,
                    (long long)model->max_positions);
}

/* ---- from a file --------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    size_t line;
    const iv_text_model *text_model; /* for prompts and messages */
    const iv_model_info *model;
    size_t max_tokens;
} reader;

static int field_error(const reader *at, const char *field, const char *wanted, iv_error *err) {
    return cli_fail(err, CLI_FAILED, "%.300s: line %zu: %s: wanted %s", at->path, at->line, field, wanted);
}

/* The engine checks ranges of sampling parameters; this checks what the types can hold. */
static int read_real(const reader *at, const json_t *object, const char *field, float *out, iv_error *err) {
    const json_t *value = json_object_get(object, field);
    if (!value) return CLI_OK;
    *out = (float)json_number_value(value);
    return json_is_number(value) && isfinite(*out) ? CLI_OK : field_error(at, field, "a number", err);
}

static int read_whole(const reader *at, const json_t *object, const char *field, int64_t least, int64_t most,
                      int64_t *out, iv_error *err) {
    const json_t *value = json_object_get(object, field);
    if (!value) return CLI_OK;
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= least && *out <= most) return CLI_OK;
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)least, (long long)most);
    return field_error(at, field, wanted, err);
}

static int read_parameters(const reader *at, const json_t *object, iv_request *r, iv_error *err) {
    int64_t max_tokens = (int64_t)at->max_tokens, top_k = 0, seed = (int64_t)at->line;
    const json_t *ignore = json_object_get(object, "ignore_eos");
    *r = plain_request(at->max_tokens, 0);
    int code = read_whole(at, object, "max_tokens", 1, VERIFY_ANSWER_MAX, &max_tokens, err);
    if (code == CLI_OK) code = read_whole(at, object, "top_k", 0, INT32_MAX, &top_k, err);
    if (code == CLI_OK) code = read_whole(at, object, "seed", 0, INT64_MAX, &seed, err);
    if (code == CLI_OK) code = read_real(at, object, "temperature", &r->temperature, err);
    if (code == CLI_OK) code = read_real(at, object, "top_p", &r->top_p, err);
    if (code == CLI_OK) code = read_real(at, object, "min_p", &r->min_p, err);
    if (code == CLI_OK) code = read_real(at, object, "repetition_penalty", &r->repetition_penalty, err);
    if (code == CLI_OK) code = read_real(at, object, "presence_penalty", &r->presence_penalty, err);
    if (code == CLI_OK) code = read_real(at, object, "frequency_penalty", &r->frequency_penalty, err);
    if (code == CLI_OK && ignore && !json_is_boolean(ignore))
        code = field_error(at, "ignore_eos", "true or false", err);
    r->max_tokens = (size_t)max_tokens, r->top_k = (int32_t)top_k, r->seed = (uint64_t)seed;
    r->ignore_eos = json_is_true(ignore);
    return code;
}

static int check_fields(const reader *at, const json_t *object, iv_error *err) {
    static const char *const known[] = {"prompt",
                                        "messages",
                                        "ids",
                                        "max_tokens",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "seed",
                                        "ignore_eos"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(key, known[i]) == 0;
        char shown[CLI_SHOWN_BYTES];
        if (!found)
            return cli_fail(err, CLI_FAILED, "%.300s: line %zu: unknown field \"%s\"", at->path, at->line,
                            cli_shown(key, shown));
    }
    int sources =
        !!json_object_get(object, "prompt") + !!json_object_get(object, "messages") + !!json_object_get(object, "ids");
    if (sources == 1) return CLI_OK;
    return cli_fail(err, CLI_FAILED, "%.300s: line %zu: wanted one of \"prompt\", \"messages\" and \"ids\", found %s",
                    at->path, at->line, sources ? "more" : "none");
}

static int tokens_of_json(const reader *at, const json_t *list, iv_ids *out, iv_error *err) {
    size_t n = json_array_size(list);
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a list of token ids from 0 to %lld", (long long)at->model->vocab_size - 1);
    if (n == 0) return field_error(at, "ids", wanted, err);
    out->data = calloc(n, sizeof *out->data);
    if (!out->data) return cli_fail(err, CLI_FAILED, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= at->model->vocab_size)
            return field_error(at, "ids", wanted, err);
        out->data[out->count++] = (int32_t)value;
    }
    return CLI_OK;
}

static int tokens_of_messages(const reader *at, const json_t *messages, iv_ids *out, iv_error *err) {
    char *variables = NULL;
    iv_text text = {0};
    if (!json_is_array(messages)) return field_error(at, "messages", "a list", err);
    int code = cli_chat_variables(messages, NULL, &variables, err);
    if (code == CLI_OK && iv_render_chat(at->text_model, variables, strlen(variables), NULL, &text, err) != IV_OK)
        code = CLI_FAILED;
    if (code == CLI_OK && iv_tokenize(at->text_model, text.data, text.bytes, false, out, err) != IV_OK)
        code = CLI_FAILED;
    iv_text_free(&text);
    free(variables);
    return code;
}

static int read_tokens(const reader *at, const json_t *object, iv_ids *out, iv_error *err) {
    const json_t *ids = json_object_get(object, "ids"), *messages = json_object_get(object, "messages"),
                 *prompt = json_object_get(object, "prompt");
    if (ids) return tokens_of_json(at, ids, out, err);
    iv_error why = {0};
    int code = CLI_OK;
    if (prompt && !json_is_string(prompt)) return field_error(at, "prompt", "a text", err);
    if (messages)
        code = tokens_of_messages(at, messages, out, &why);
    else if (iv_tokenize(at->text_model, json_string_value(prompt), json_string_length(prompt), true, out, &why) !=
             IV_OK)
        code = CLI_FAILED;
    if (code != CLI_OK) return cli_fail(err, CLI_FAILED, "%.300s: line %zu: %.500s", at->path, at->line, why.message);
    return out->count ? CLI_OK : field_error(at, messages ? "messages" : "prompt", "at least one token", err);
}

static int read_object(const reader *at, const json_t *object, verify_prompts *out, iv_error *err) {
    iv_request r;
    iv_ids ids = {0};
    int code = check_fields(at, object, err);
    if (code == CLI_OK) code = read_parameters(at, object, &r, err);
    if (code == CLI_OK) code = read_tokens(at, object, &ids, err);
    if (code == CLI_OK && ids.count + r.max_tokens > (size_t)at->model->max_positions)
        code =
            cli_fail(err, CLI_FAILED, "%.300s: line %zu: %zu tokens and %zu to generate, the model has %lld positions",
                     at->path, at->line, ids.count, r.max_tokens, (long long)at->model->max_positions);
    if (code == CLI_OK) {
        verify_prompt *item = add_prompt(out, ids.count, r);
        if (item)
            memcpy(item->ids, ids.data, ids.count * sizeof *ids.data), item->line = at->line;
        else
            code = cli_fail(err, CLI_FAILED, "out of memory");
    }
    iv_ids_free(&ids);
    return code;
}

static int read_line(const reader *at, const char *line, size_t bytes, verify_prompts *out, iv_error *err) {
    json_error_t why;
    if (out->count == VERIFY_PROMPTS_MAX)
        return cli_fail(err, CLI_FAILED, "%.300s: line %zu: wanted at most %d prompts", at->path, at->line,
                        VERIFY_PROMPTS_MAX);
    json_t *object = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return cli_fail(err, CLI_FAILED, "%.300s: line %zu, column %d: not valid JSON: %s", at->path, at->line,
                        why.column, why.text);
    int code = json_is_object(object)
                   ? read_object(at, object, out, err)
                   : cli_fail(err, CLI_FAILED, "%.300s: line %zu: wanted a JSON object", at->path, at->line);
    json_decref(object);
    return code;
}

int verify_prompts_read(const char *path, const char *model_path, const iv_model_info *model, size_t max_tokens,
                        verify_prompts *out, iv_error *err) {
    cli_bytes file;
    iv_text_model *text_model = NULL;
    *out = (verify_prompts){0};
    int code = cli_read_file(path, true, &file, err);
    if (code != CLI_OK) return code;
    if (iv_text_model_open(model_path, &text_model, err) != IV_OK) code = CLI_FAILED;
    reader at = {.path = path, .text_model = text_model, .model = model, .max_tokens = max_tokens};
    for (cli_lines l = {.text = file}; code == CLI_OK && cli_next_line(&l);) {
        at.line = l.number;
        code = read_line(&at, l.line, l.line_bytes, out, err);
    }
    if (code == CLI_OK && out->count == 0)
        code = cli_fail(err, CLI_FAILED, "%.300s: wanted a prompt, found none", path);
    iv_text_model_close(text_model);
    free(file.data);
    if (code != CLI_OK) verify_prompts_free(out);
    return code;
}
