/* replay.c: invar replay: receipts are gathered by maker, each maker is opened once, and lines come out in the order of
 * the file. */
#include "replay.h"
#include "commands.h"
#include "crowd.h"
#include "engine_flags.h"
#include "model.h"
#include "output.h"
#include "rank.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* What tells engines apart. Strings point into receipts and flags. */
typedef struct maker {
    char path[CLI_PATH_BYTES];
    const char *arithmetic, *dtype, *numerics;
    size_t ranks;
} maker;

typedef struct replay {
    const cli_args *args;
    cli_replays all;
    bool json, force;
    cli_progress progress;
    size_t shown; /* items whose line is out */
    /* The engine at work and the items it serves. */
    iv_engine *engine;
    size_t *jobs, job_count, ended_before;
} replay;

/* ---- makers -------------------------------------------------------------------------------------------- */

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The MODEL operand; else the receipt's directory, or what is known by its last name here. */
static int find_model(const replay *r, const iv_receipt_info *info, char out[CLI_PATH_BYTES], iv_error *err) {
    if (r->args->operand_count > 1) return cli_model_path(r->args->operands[1], out, err);
    if (cli_model_path(info->model, out, err) == CLI_OK) return CLI_OK;
    const char *name = base_name(info->model);
    iv_error ignored;
    if (*name && cli_model_path(name, out, &ignored) == CLI_OK) return CLI_OK;
    iv_error why = *err;
    return cli_fail(err, CLI_FAILED, "the receipt's model: %.600s (give MODEL behind the receipt)", why.message);
}

/* Its receipt cannot be computed here; the others can. */
static void fail_item(cli_replayed *item, const iv_error *why) {
    item->verdict = CLI_REPLAY_FAILED;
    item->why = strdup(why->message);
}

static int maker_of(const replay *r, const cli_replayed *item, maker *out, iv_error *err) {
    iv_receipt_info info;
    iv_receipt_get_info(item->receipt, &info);
    *out = (maker){.arithmetic = cli_text(r->args, "arithmetic", info.maker.arithmetic),
                   .dtype = cli_text(r->args, "dtype", info.maker.dtype),
                   .numerics = cli_text(r->args, "numerics", info.maker.numerics)};
    size_t ranks = strcmp(out->numerics, "invar") == 0 ? 0 : info.maker.tensor_parallel_size; /* 0: as they come */
    out->ranks = cli_count(r->args, "tensor-parallel-size", ranks);
    return find_model(r, &info, out->path, err);
}

static bool same_maker(const maker *a, const maker *b) {
    return strcmp(a->path, b->path) == 0 && strcmp(a->arithmetic, b->arithmetic) == 0 &&
           strcmp(a->dtype, b->dtype) == 0 && strcmp(a->numerics, b->numerics) == 0 && a->ranks == b->ranks;
}

/* Room for the longest of the jobs, unless flags say how much. */
static int open_engine(replay *r, const maker *m, iv_error *err) {
    iv_engine_options o;
    iv_engine_options_init(&o);
    cli_engine_options(r->args, &o);
    o.model = m->path;
    o.arithmetic = m->arithmetic;
    o.dtype = m->dtype;
    o.numerics = m->numerics;
    o.tensor_parallel_size = m->ranks;
    size_t longest = 0;
    for (size_t i = 0; i < r->job_count; i++) {
        iv_request request;
        cli_replay_request(&r->all.items[r->jobs[i]], &request);
        size_t tokens = request.id_count + request.max_tokens;
        if (tokens > longest) longest = tokens;
    }
    if (!o.max_model_len) o.max_model_len = longest;
    return cli_engine_open_with(&o, r->args->operands[0], &r->engine, err);
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static int show_ready(replay *r, iv_error *err) {
    if (r->json) return CLI_OK;
    cli_page page;
    if (r->shown == r->all.count || r->all.items[r->shown].verdict == CLI_REPLAY_PENDING) return CLI_OK;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    cli_progress_end(&r->progress);
    while (r->shown < r->all.count && r->all.items[r->shown].verdict != CLI_REPLAY_PENDING)
        cli_replay_print(&r->all.items[r->shown++], r->engine ? iv_engine_textual(r->engine) : NULL, page.file);
    return cli_page_out(&page, err);
}

static int make_request(void *user, size_t job, iv_request *request, iv_error *err) {
    const replay *r = user;
    (void)err;
    cli_replay_request(&r->all.items[r->jobs[job]], request);
    return CLI_OK;
}

static int on_event(void *user, size_t job, const iv_event *event, iv_error *err) {
    replay *r = user;
    (void)err;
    cli_replay_note(&r->all.items[r->jobs[job]], event);
    return CLI_OK;
}

/* A prompt that another model cannot even read. */
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

/* An answer that would be cut says nothing about its bits. */
static bool too_long(const cli_replayed *item, const iv_engine_info *engine, iv_error *why) {
    iv_request request;
    cli_replay_request(item, &request);
    size_t tokens = request.id_count + request.max_tokens;
    if (tokens <= engine->max_model_len) return false;
    cli_fail(why, CLI_FAILED, "max_model_len: wanted %zu or more, the tokens of its prompt and answer, found %zu",
             tokens, engine->max_model_len);
    return true;
}

/* Sets aside receipts whose fingerprint differs, those that do not fit, and those without a token to compute. */
static int sort_out(replay *r, iv_error *err) {
    size_t kept = 0;
    iv_engine_info engine;
    iv_engine_get_info(r->engine, &engine);
    for (size_t i = 0; i < r->job_count; i++) {
        cli_replayed *item = &r->all.items[r->jobs[i]];
        iv_receipt_info info;
        iv_error why;
        iv_receipt_get_info(item->receipt, &info);
        if (!r->force && iv_receipt_match(item->receipt, r->engine, &why) != IV_OK) {
            item->verdict = CLI_REPLAY_OTHER_MAKER;
            item->why = strdup(why.message);
            if (!item->why) return cli_fail(err, CLI_FAILED, "out of memory");
        } else if (info.id_count == 0)
            item->verdict = CLI_REPLAY_EQUAL;
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
                            "wanted receipts of one maker under mpirun, found others (without it, --tp makes ranks of "
                            "threads)");
    return CLI_OK;
}

static int run_group(replay *r, const maker *m, iv_error *err) {
    int code = open_engine(r, m, err);
    if (code == CLI_FAILED && !cli_has_other_ranks()) { /* this maker cannot be had; others may */
        for (size_t i = 0; i < r->job_count; i++) fail_item(&r->all.items[r->jobs[i]], err);
        r->ended_before += r->job_count;
        return show_ready(r, err);
    }
    if (code == CLI_OK) code = sort_out(r, err);
    if (code == CLI_OK) code = show_ready(r, err);
    if (code == CLI_OK && r->job_count) {
        cli_crowd crowd = {.engine = r->engine,
                           .jobs = r->job_count,
                           .most = cli_count(r->args, "max-num-seqs", 16),
                           .user = r,
                           .request = make_request,
                           .refused = on_refused,
                           .event = on_event,
                           .turn = on_turn};
        code = cli_crowd_run(&crowd, err);
    }
    r->ended_before += r->job_count;
    iv_engine_close(r->engine);
    r->engine = NULL;
    return code;
}

/* makers[i] of each receipt; done: its model is not to be found. Processes of mpirun have but one maker: no other is
 * harmed, and only the error is said by all of them. */
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
    cli_page page;
    if (cli_page_open(&page, err) != CLI_OK) return CLI_FAILED;
    iv_json_out json = {.spaced = true, .file = page.file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_uint(&json, "receipts", r->all.count);
    iv_out_kv_uint(&json, "equal", counts[CLI_REPLAY_EQUAL]);
    iv_out_kv_open(&json, "results", '[');
    for (size_t i = 0; i < r->all.count; i++) cli_replay_json(&r->all.items[i], &json);
    iv_out_close(&json, ']');
    iv_out_close(&json, '}');
    fputc('\n', page.file);
    return cli_page_out(&page, err);
}

static int finish(replay *r, iv_error *err) {
    size_t counts[CLI_REPLAY_FAILED + 1] = {0};
    for (size_t i = 0; i < r->all.count; i++) counts[r->all.items[i].verdict]++;
    int code = r->json ? write_json(r, counts, err) : CLI_OK;
    if (code != CLI_OK || counts[CLI_REPLAY_EQUAL] == r->all.count) return code;
    return cli_fail(err, CLI_FAILED, "receipts: %zu equal, %zu differ, %zu from another maker%s, %zu failed",
                    counts[CLI_REPLAY_EQUAL], counts[CLI_REPLAY_DIFFERS], counts[CLI_REPLAY_OTHER_MAKER],
                    counts[CLI_REPLAY_OTHER_MAKER] ? " (--force computes them all the same)" : "",
                    counts[CLI_REPLAY_FAILED]);
}

int cli_replay(const cli_args *args, iv_error *err) {
    replay r = {.args = args, .json = cli_has(args, "json"), .force = cli_has(args, "force")};
    int code = cli_replays_read(args->operands[0], &r.all, err);
    if (code != CLI_OK) return code;
    cli_progress_start(&r.progress, "replay");
    code = run_all(&r, err);
    cli_progress_end(&r.progress);
    if (code == CLI_OK) code = finish(&r, err);
    cli_replays_free(&r.all);
    return code;
}
