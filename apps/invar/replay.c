/* replay.c: invar replay: receipts are read, grouped by maker, and each maker is opened once; lines come out in the
 * order of the file. Invariant: EQUAL means that every token, the bits of every log-probability, the digest and the
 * reason for the end agree. */
#include "commands.h"
#include "answer.h"
#include "divergence.h"
#include "input.h"
#include "base/json_out.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIPTS_MAX = 1 << 20, RECEIPT_NAME_BYTES = 128 };

typedef enum replay_verdict {
    REPLAY_PENDING,
    REPLAY_EQUAL,
    REPLAY_DIFFERS,
    REPLAY_OTHER_MAKER, /* the fingerprints differ: not computed */
    REPLAY_FAILED       /* the request ended in an error */
} replay_verdict;

typedef struct replayed {
    char name[RECEIPT_NAME_BYTES]; /* "FILE:LINE" */
    size_t line;
    iv_receipt *receipt;
    replay_verdict verdict;
    char *why; /* of OTHER_MAKER and FAILED; owned */
    char digest[96];
    size_t compared;  /* tokens so far */
    bool has_first;   /* the first difference: */
    size_t position;  /* among the generated tokens */
    int32_t token;    /* the token found; -1: the answer had ended */
    float logprob;    /* of that token */
    uint64_t ulps;    /* between the log-probabilities; 0 when the tokens differ */
    size_t unequal;   /* positions whose token or log-probability differ */
    iv_finish finish; /* of the new answer */
    char *stop;       /* the matched stop string, NULL: none; owned */
} replayed;

typedef struct replayed_list {
    replayed *items;
    size_t count;
} replayed_list;

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The receipt inside a line of results: *inner is its text, NULL if the line has none. CLI_OK with *inner NULL and
 * *whole true: the line itself is the receipt. */
static int unwrap(const char *name, const char *line, size_t n, char **inner, bool *whole, iv_error *err) {
    json_error_t why;
    json_t *value = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    *inner = NULL;
    *whole = true;
    if (!value) return CLI_OK; /* iv_receipt_read reports the error */
    json_t *nested = json_object_get(value, "receipt");
    int code = CLI_OK;
    if (json_is_object(nested)) {
        *whole = false;
        *inner = json_dumps(nested, JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (!*inner) code = cli_fail(err, CLI_FAILED, "%s: out of memory", name);
    } else if (json_is_object(value) && (json_object_get(value, "eval") || json_is_null(nested)))
        *whole = false;
    json_decref(value);
    return code;
}

static int add_line(replayed_list *out, const char *path, size_t number, const char *line, size_t n, iv_error *err) {
    replayed item = {.line = number};
    size_t path_bytes = strlen(path), room = RECEIPT_NAME_BYTES - 24;
    snprintf(item.name, sizeof item.name, "%s%s:%zu", path_bytes > room ? "..." : "",
             path_bytes > room ? path + path_bytes - room + 3 : path, number);
    char *inner;
    bool whole;
    int code = unwrap(item.name, line, n, &inner, &whole, err);
    if (code != CLI_OK || (!whole && !inner)) return code;
    const char *text = inner ? inner : line;
    if (out->count == RECEIPTS_MAX)
        code = cli_fail(err, CLI_FAILED, "%s: wanted at most %d receipts", item.name, RECEIPTS_MAX);
    else if (iv_receipt_read(item.name, text, inner ? strlen(inner) : n, &item.receipt, err) != IV_OK)
        code = CLI_FAILED;
    free(inner);
    if (code != CLI_OK) return code;
    if ((out->count & (out->count + 1)) == 0) { /* grow at 0, 1, 3, 7, ... */
        replayed *more = realloc(out->items, 2 * (out->count + 1) * sizeof *more);
        if (!more) {
            iv_receipt_close(item.receipt);
            return cli_fail(err, CLI_FAILED, "%s: out of memory", path);
        }
        out->items = more;
    }
    out->items[out->count++] = item;
    return CLI_OK;
}

static void free_receipts(replayed_list *replays) {
    for (size_t i = 0; i < replays->count; i++) {
        iv_receipt_close(replays->items[i].receipt);
        free(replays->items[i].why);
        free(replays->items[i].stop);
    }
    free(replays->items);
    *replays = (replayed_list){0};
}

/* Reads receipts, one per line. Lines of an evaluation's results carry theirs as the member "receipt"; its other lines
 * and empty ones are skipped. The first bad line is an error that names it; a file without receipts is an error. */
static int read_receipts(const char *path, replayed_list *out, iv_error *err) {
    cli_bytes file;
    *out = (replayed_list){0};
    int code = cli_read_file(path, false, &file, err);
    if (code != CLI_OK) return code;
    cli_lines l = {.text = file};
    while (code == CLI_OK && cli_next_line(&l)) code = add_line(out, path, l.number, l.line, l.line_bytes, err);
    free(file.data);
    if (code == CLI_OK && out->count == 0) code = cli_fail(err, CLI_FAILED, "%s: wanted a receipt, found none", path);
    if (code != CLI_OK) free_receipts(out);
    return code;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static void request_of(const replayed *item, iv_request *out) {
    iv_receipt_info info;
    iv_receipt_get_info(item->receipt, &info);
    iv_receipt_get_request(item->receipt, out);
    out->max_tokens = info.id_count;
    if (out->min_tokens > info.id_count) out->min_tokens = info.id_count; /* a truncated answer may be shorter */
    out->logprobs = -1;
}

static void note_first(replayed *item, size_t position, int32_t token, float logprob, uint64_t ulps) {
    item->unequal++;
    if (item->has_first) return;
    item->has_first = true;
    item->position = position;
    item->token = token;
    item->logprob = logprob;
    item->ulps = ulps;
}

static bool same_end(iv_finish a, const char *a_stop, iv_finish b, const char *b_stop) {
    return a == b && (a_stop == NULL) == (b_stop == NULL) && (!a_stop || strcmp(a_stop, b_stop) == 0);
}

static void note_end(replayed *item, const iv_receipt_info *want, const iv_event *event) {
    item->finish = event->finish;
    item->stop = event->stop ? strdup(event->stop) : NULL;
    snprintf(item->digest, sizeof item->digest, "%s", event->digest ? event->digest : "");
    if (event->finish == IV_FINISH_ERROR) {
        item->verdict = REPLAY_FAILED;
        item->why = strdup(event->error ? event->error : "the request ended in an error");
        return;
    }
    if (item->compared < want->id_count) note_first(item, item->compared, -1, 0, 0);
    /* A cancelled or failed answer was truncated at a point that its request does not determine. */
    bool whole = want->finish == IV_FINISH_STOP || want->finish == IV_FINISH_LENGTH;
    bool same = !item->has_first && (!whole || same_end(want->finish, want->stop, event->finish, event->stop)) &&
                strcmp(want->digest, item->digest) == 0;
    item->verdict = same ? REPLAY_EQUAL : REPLAY_DIFFERS;
}

static void note_event(replayed *item, const iv_event *event) {
    iv_receipt_info want;
    iv_receipt_get_info(item->receipt, &want);
    if (event->kind == IV_EVENT_DONE) {
        note_end(item, &want, event);
        return;
    }
    size_t at = item->compared++;
    if (at >= want.id_count) return;
    uint64_t ulps = cli_ulp_distance(event->logprob, want.logprobs[at]);
    if (event->token != want.ids[at])
        note_first(item, at, event->token, event->logprob, 0);
    else if (ulps)
        note_first(item, at, event->token, event->logprob, ulps);
}

/* ---- reporting ----------------------------------------------------------------------------------------- */

static const char *const verdict_names[] = {"pending", "equal", "differs", "other maker", "failed"};

static void print_token(FILE *out, const iv_text_model *text_model, int32_t id) {
    size_t n = 0;
    const char *text = text_model ? iv_token_string(text_model, id, &n) : NULL;
    fprintf(out, "%d", (int)id);
    if (!text) return;
    fputs(" '", out);
    cli_print_safe(out, text, n, false);
    fputc('\'', out);
}

/* "length"; "stop at 'x'"; "stop" at a token. */
static void print_end(FILE *out, iv_finish finish, const char *stop) {
    fputs(iv_finish_name(finish), out);
    if (!stop) return;
    fputs(" at '", out);
    cli_print_safe(out, stop, strlen(stop), false);
    fputc('\'', out);
}

/* Another engine's method, computed among other requests: a difference is what such bits do, not a fault of this run.
 */
static bool is_baseline(const iv_receipt_info *info) { return strcmp(info->maker.numerics, "invar") != 0; }

static void print_item(const replayed *item, const iv_text_model *text_model, FILE *out) {
    iv_receipt_info want;
    iv_receipt_get_info(item->receipt, &want);
    char digits[2][32], name[CLI_SHOWN_BYTES];
    cli_shown(item->name, name);
    cli_print_safe(out, name, strlen(name), false);
    fprintf(out, "  %s", verdict_names[item->verdict]);
    if (item->verdict == REPLAY_EQUAL) fprintf(out, "  %zu tokens  %s", want.id_count, want.digest);
    if (item->why) {
        fputs(": ", out);
        cli_print_safe(out, item->why, strlen(item->why), false);
    }
    if (item->verdict == REPLAY_DIFFERS && item->has_first) {
        size_t at = item->position;
        fprintf(out, ": token %zu of %zu: wanted ", at + 1, want.id_count);
        print_token(out, text_model, want.ids[at]);
        fprintf(out, " (%s), found ", iv_float_digits(want.logprobs[at], digits[0]));
        if (item->token < 0)
            fputs("the end", out);
        else {
            print_token(out, text_model, item->token);
            fprintf(out, " (%s)", iv_float_digits(item->logprob, digits[1]));
        }
        if (item->ulps) fprintf(out, ", %llu ulp apart", (unsigned long long)item->ulps);
        fprintf(out, "; %zu positions differ", item->unequal);
        if (is_baseline(&want)) fprintf(out, "; the bits of numerics %s depend on the batch", want.maker.numerics);
    } else if (item->verdict == REPLAY_DIFFERS) {
        fprintf(out, ": the same %zu tokens, but wanted the end by ", want.id_count);
        print_end(out, want.finish, want.stop);
        fputs(", found ", out);
        print_end(out, item->finish, item->stop);
    }
    fputc('\n', out);
}

static void json_item(const replayed *item, iv_json_out *json) {
    iv_receipt_info want;
    iv_receipt_get_info(item->receipt, &want);
    iv_out_kv_open(json, NULL, '{');
    iv_out_kv_uint(json, "line", item->line);
    iv_out_kv_text(json, "verdict", verdict_names[item->verdict]);
    iv_out_kv_uint(json, "tokens", want.id_count);
    iv_out_kv_text(json, "digest", want.digest);
    iv_out_kv_text(json, "found_digest", item->digest[0] ? item->digest : NULL);
    if (item->why) iv_out_kv_text(json, "why", item->why);
    if (item->verdict == REPLAY_DIFFERS) {
        iv_out_kv_text(json, "finish", iv_finish_name(want.finish));
        iv_out_kv_text(json, "found_finish", iv_finish_name(item->finish));
        iv_out_kv_text(json, "stop", want.stop);
        iv_out_kv_text(json, "found_stop", item->stop);
        iv_out_kv_uint(json, "positions_that_differ", item->unequal);
        iv_out_kv_bool(json, "depends_on_the_batch", is_baseline(&want));
    }
    if (item->has_first) {
        iv_out_kv_open(json, "first_difference", '{');
        iv_out_kv_uint(json, "position", item->position);
        iv_out_kv_int(json, "token", want.ids[item->position]);
        iv_out_kv_shortest(json, "logprob", want.logprobs[item->position]);
        iv_out_kv_int(json, "found_token", item->token);
        iv_out_kv_shortest(json, "found_logprob", item->logprob);
        iv_out_kv_uint(json, "ulps", item->ulps);
        iv_out_close(json, '}');
    }
    iv_out_close(json, '}');
}

/* ---- engines ------------------------------------------------------------------------------------------- */

/* What distinguishes engines. Strings point into receipts and flags. */
typedef struct maker {
    char path[CLI_PATH_BYTES];
    const char *arithmetic, *dtype, *numerics;
    size_t ranks;
    bool all_ids;
} maker;

typedef struct replay {
    const cli_args *args;
    replayed_list all;
    bool json, force;
    cli_progress progress;
    size_t shown; /* items already printed */
    /* The current engine and its items. */
    iv_engine *engine;
    size_t *jobs, job_count, ended_before;
} replay;

/* ---- makers -------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The MODEL operand; else the receipt's directory, or a local model of the same name. */
static int find_model(const replay *r, const iv_receipt_info *info, char out[CLI_PATH_BYTES], iv_error *err) {
    if (r->args->operand_count > 1) return cli_model_path(r->args->operands[1], out, err);
    if (cli_model_path(info->model, out, err) == CLI_OK) return CLI_OK;
    const char *name = base_name(info->model);
    iv_error ignored;
    if (*name && cli_model_path(name, out, &ignored) == CLI_OK) return CLI_OK;
    iv_error why = *err;
    return cli_fail(err, CLI_FAILED, "the receipt's model: %.600s (give MODEL after RECEIPTS)", why.message);
}

/* This receipt cannot be computed here; others may. */
static void fail_item(replayed *item, const iv_error *why) {
    item->verdict = REPLAY_FAILED;
    item->why = strdup(why->message);
}

static int maker_of(const replay *r, const replayed *item, maker *out, iv_error *err) {
    iv_receipt_info info;
    iv_receipt_get_info(item->receipt, &info);
    *out = (maker){.arithmetic = cli_text(r->args, "arithmetic", info.maker.arithmetic),
                   .dtype = cli_text(r->args, "dtype", info.maker.dtype),
                   .numerics = cli_text(r->args, "numerics", info.maker.numerics)};
    size_t ranks = strcmp(out->numerics, "invar") == 0 ? 0 : info.maker.tensor_parallel_size; /* 0: the default */
    out->ranks = cli_count(r->args, "tensor-parallel-size", ranks);
    out->all_ids = !*info.maker.sampled_ids_digest || cli_has(r->args, "sample-all-ids");
    return find_model(r, &info, out->path, err);
}

static bool same_maker(const maker *a, const maker *b) {
    return strcmp(a->path, b->path) == 0 && strcmp(a->arithmetic, b->arithmetic) == 0 &&
           strcmp(a->dtype, b->dtype) == 0 && strcmp(a->numerics, b->numerics) == 0 && a->ranks == b->ranks &&
           a->all_ids == b->all_ids;
}

/* Room for the longest job, unless flags set the limit. */
static int open_engine(replay *r, const maker *m, iv_error *err) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    cli_engine_options(r->args, &o);
    o.model = m->path;
    o.arithmetic = m->arithmetic;
    o.dtype = m->dtype;
    o.numerics = m->numerics;
    o.tensor_parallel_size = m->ranks;
    o.sample_all_ids = m->all_ids;
    size_t longest = 0;
    for (size_t i = 0; i < r->job_count; i++) {
        iv_request request;
        request_of(&r->all.items[r->jobs[i]], &request);
        size_t tokens = request.id_count + request.max_tokens;
        if (tokens > longest) longest = tokens;
    }
    if (!o.max_model_len) o.max_model_len = longest;
    int code = cli_engine_open_with(&o, r->args->operands[0], &r->engine, err);
    return code == CLI_OK ? cli_lora_load(r->args, r->engine, err) : code;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static int show_ready(replay *r, iv_error *err) {
    if (r->json) return CLI_OK;
    cli_buffer buffer;
    if (r->shown == r->all.count || r->all.items[r->shown].verdict == REPLAY_PENDING) return CLI_OK;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    cli_progress_end(&r->progress);
    while (r->shown < r->all.count && r->all.items[r->shown].verdict != REPLAY_PENDING)
        print_item(&r->all.items[r->shown++], r->engine ? iv_engine_text_model(r->engine) : NULL, buffer.file);
    return cli_buffer_out(&buffer, err);
}

static int make_request(void *user, size_t job, iv_request *request, iv_error *err) {
    const replay *r = user;
    (void)err;
    request_of(&r->all.items[r->jobs[job]], request);
    return CLI_OK;
}

static int on_event(void *user, size_t job, const iv_event *event, iv_error *err) {
    replay *r = user;
    (void)err;
    note_event(&r->all.items[r->jobs[job]], event);
    return CLI_OK;
}

/* The model cannot accept the prompt. */
static int on_refused(void *user, size_t job, const iv_error *why) {
    replay *r = user;
    fail_item(&r->all.items[r->jobs[job]], why);
    return CLI_OK;
}

static int on_turn(void *user, size_t ended, iv_error *err) {
    replay *r = user;
    int code = show_ready(r, err);
    cli_progress_count(&r->progress, r->ended_before + ended, r->all.count, "receipts");
    return code;
}

/* A truncated answer would prove nothing about its bits. */
static bool too_long(const replayed *item, const iv_engine_info *engine, iv_error *why) {
    iv_request request;
    request_of(item, &request);
    size_t tokens = request.id_count + request.max_tokens;
    if (tokens <= engine->max_model_len) return false;
    cli_fail(why, CLI_FAILED, "max_model_len: wanted %zu or more, the tokens of its prompt and answer, found %zu",
             tokens, engine->max_model_len);
    return true;
}

/* Filters out receipts with another fingerprint, those that do not fit, and those without tokens. */
static int sort_out(replay *r, iv_error *err) {
    size_t kept = 0;
    iv_engine_info engine;
    iv_engine_get_info(r->engine, &engine);
    for (size_t i = 0; i < r->job_count; i++) {
        replayed *item = &r->all.items[r->jobs[i]];
        iv_receipt_info info;
        iv_error why;
        iv_receipt_get_info(item->receipt, &info);
        if (!r->force && iv_receipt_match(item->receipt, r->engine, &why) != IV_OK) {
            item->verdict = REPLAY_OTHER_MAKER;
            item->why = strdup(why.message);
            if (!item->why) return cli_fail(err, CLI_FAILED, "out of memory");
        } else if (info.id_count == 0)
            item->verdict = REPLAY_EQUAL;
        else if (too_long(item, &engine, &why))
            fail_item(item, &why);
        else
            r->jobs[kept++] = r->jobs[i];
    }
    r->ended_before += r->job_count - kept;
    r->job_count = kept;
    return CLI_OK;
}

/* The other processes serve one engine and end with it. */
static int check_ranks(const maker *makers, size_t count, iv_error *err) {
    for (size_t i = 1; i < count && cli_has_other_ranks(); i++)
        if (!same_maker(&makers[0], &makers[i]))
            return cli_fail(err, CLI_USAGE,
                            "wanted receipts of one maker under mpirun, found others (without it, --tp runs ranks as "
                            "threads)");
    return CLI_OK;
}

static int run_group(replay *r, const maker *m, iv_error *err) {
    int code = open_engine(r, m, err);
    if (code == CLI_FAILED && !cli_has_other_ranks()) { /* this maker cannot be opened; others may */
        for (size_t i = 0; i < r->job_count; i++) fail_item(&r->all.items[r->jobs[i]], err);
        r->ended_before += r->job_count;
        return show_ready(r, err);
    }
    if (code == CLI_OK) code = sort_out(r, err);
    if (code == CLI_OK) code = show_ready(r, err);
    if (code == CLI_OK && r->job_count) {
        cli_workload workload = {.engine = r->engine,
                                 .jobs = r->job_count,
                                 .concurrency = cli_count(r->args, "max-num-seqs", 16),
                                 .user = r,
                                 .request = make_request,
                                 .refused = on_refused,
                                 .event = on_event,
                                 .turn = on_turn};
        code = cli_workload_run(&workload, err);
    }
    r->ended_before += r->job_count;
    iv_engine_close(r->engine);
    r->engine = NULL;
    return code;
}

/* makers[i] of each receipt; done[i]: its model was not found. Under mpirun there is only one maker, so the error of
 * all ranks is the command's. */
static int find_makers(replay *r, maker *makers, bool *done, iv_error *err) {
    for (size_t i = 0; i < r->all.count; i++) {
        if (maker_of(r, &r->all.items[i], &makers[i], err) == CLI_OK) continue;
        if (cli_has_other_ranks()) return CLI_FAILED;
        fail_item(&r->all.items[i], err);
        done[i] = true;
        r->ended_before++;
    }
    return CLI_OK;
}

static int run_groups(replay *r, const maker *makers, bool *done, iv_error *err) {
    size_t count = r->all.count, left = count - r->ended_before;
    int code = show_ready(r, err);
    for (size_t first = 0; code == CLI_OK && left; first++) {
        if (done[first]) continue;
        r->job_count = 0;
        for (size_t i = first; i < count; i++)
            if (!done[i] && same_maker(&makers[first], &makers[i])) r->jobs[r->job_count++] = i, done[i] = true;
        left -= r->job_count;
        code = run_group(r, &makers[first], err);
    }
    return code;
}

static int run_all(replay *r, iv_error *err) {
    size_t count = r->all.count;
    maker *makers = calloc(count, sizeof *makers);
    bool *done = calloc(count, sizeof *done);
    r->jobs = calloc(count, sizeof *r->jobs);
    int code = makers && done && r->jobs ? CLI_OK : cli_fail(err, CLI_FAILED, "out of memory");
    if (code == CLI_OK) code = find_makers(r, makers, done, err);
    if (code == CLI_OK) code = check_ranks(makers, count, err);
    if (code == CLI_OK) code = run_groups(r, makers, done, err);
    free(makers), free(done), free(r->jobs);
    return code;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static int write_json(const replay *r, const size_t counts[], iv_error *err) {
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    iv_json_out json = {.spaced = true, .file = buffer.file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_uint(&json, "receipts", r->all.count);
    iv_out_kv_uint(&json, "equal", counts[REPLAY_EQUAL]);
    iv_out_kv_open(&json, "results", '[');
    for (size_t i = 0; i < r->all.count; i++) json_item(&r->all.items[i], &json);
    iv_out_close(&json, ']');
    iv_out_close(&json, '}');
    fputc('\n', buffer.file);
    return cli_buffer_out(&buffer, err);
}

static int finish(replay *r, iv_error *err) {
    size_t counts[REPLAY_FAILED + 1] = {0}, baselines = 0;
    for (size_t i = 0; i < r->all.count; i++) {
        iv_receipt_info want;
        iv_receipt_get_info(r->all.items[i].receipt, &want);
        counts[r->all.items[i].verdict]++;
        baselines += r->all.items[i].verdict == REPLAY_DIFFERS && is_baseline(&want);
    }
    char why[120] = "";
    if (baselines)
        snprintf(why, sizeof why, " (%zu of them by numerics whose bits depend on the batch, as expected)", baselines);
    int code = r->json ? write_json(r, counts, err) : CLI_OK;
    if (code != CLI_OK || counts[REPLAY_EQUAL] == r->all.count) return code;
    return cli_fail(err, CLI_FAILED, "receipts: %zu equal, %zu differ%s, %zu from another maker%s, %zu failed",
                    counts[REPLAY_EQUAL], counts[REPLAY_DIFFERS], why, counts[REPLAY_OTHER_MAKER],
                    counts[REPLAY_OTHER_MAKER] ? " (--force computes them anyway)" : "", counts[REPLAY_FAILED]);
}

int cli_replay(const cli_args *args, iv_error *err) {
    replay r = {.args = args, .json = cli_has(args, "json"), .force = cli_has(args, "force")};
    int code = read_receipts(args->operands[0], &r.all, err);
    if (code != CLI_OK) return code;
    cli_progress_start(&r.progress, "replay");
    code = run_all(&r, err);
    cli_progress_end(&r.progress);
    if (code == CLI_OK) code = finish(&r, err);
    free_receipts(&r.all);
    return code;
}
