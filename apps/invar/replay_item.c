/* replay_item.c: reading receipts and comparing answers with them. Invariant: EQUAL means that every token, the bits of
 * every log-probability, the digest and the reason for the end agree. */
#include "divergence.h"
#include "replay.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ------------------------------------------------------------------------------------------- */

/* The receipt of a line of results: *inner is its text, NULL for a line that has none. CLI_OK with *inner NULL and
 * *whole true: the line is itself to be read as a receipt. */
static int unwrap(const char *name, const char *line, size_t n, char **inner, bool *whole, iv_error *err) {
    json_error_t why;
    json_t *value = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    *inner = NULL;
    *whole = true;
    if (!value) return CLI_OK; /* the reader of receipts says what is wrong with it */
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

static int add_line(cli_replays *out, const char *path, size_t number, const char *line, size_t n, iv_error *err) {
    cli_replayed item = {.line = number};
    size_t path_bytes = strlen(path), room = CLI_RECEIPT_NAME_BYTES - 24;
    snprintf(item.name, sizeof item.name, "%s%s:%zu", path_bytes > room ? "..." : "",
             path_bytes > room ? path + path_bytes - room + 3 : path, number);
    char *inner;
    bool whole;
    int code = unwrap(item.name, line, n, &inner, &whole, err);
    if (code != CLI_OK || (!whole && !inner)) return code;
    const char *text = inner ? inner : line;
    if (out->count == CLI_RECEIPTS_MAX)
        code = cli_fail(err, CLI_FAILED, "%s: wanted at most %d receipts", item.name, CLI_RECEIPTS_MAX);
    else if (iv_receipt_read(item.name, text, inner ? strlen(inner) : n, &item.receipt, err) != IV_OK)
        code = CLI_FAILED;
    free(inner);
    if (code != CLI_OK) return code;
    if ((out->count & (out->count + 1)) == 0) { /* grow at 0, 1, 3, 7, ... */
        cli_replayed *more = realloc(out->items, 2 * (out->count + 1) * sizeof *more);
        if (!more) {
            iv_receipt_close(item.receipt);
            return cli_fail(err, CLI_FAILED, "%s: out of memory", path);
        }
        out->items = more;
    }
    out->items[out->count++] = item;
    return CLI_OK;
}

int cli_replays_read(const char *path, cli_replays *out, iv_error *err) {
    cli_bytes file;
    *out = (cli_replays){0};
    int code = cli_read_file(path, false, &file, err);
    if (code != CLI_OK) return code;
    cli_lines l = {.text = file};
    while (code == CLI_OK && cli_next_line(&l)) code = add_line(out, path, l.number, l.line, l.line_bytes, err);
    free(file.data);
    if (code == CLI_OK && out->count == 0) code = cli_fail(err, CLI_FAILED, "%s: wanted a receipt, found none", path);
    if (code != CLI_OK) cli_replays_free(out);
    return code;
}

void cli_replays_free(cli_replays *replays) {
    for (size_t i = 0; i < replays->count; i++) {
        iv_receipt_close(replays->items[i].receipt);
        free(replays->items[i].why);
        free(replays->items[i].stop);
    }
    free(replays->items);
    *replays = (cli_replays){0};
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

void cli_replay_request(const cli_replayed *item, iv_request *out) {
    iv_receipt_info info;
    iv_receipt_get_info(item->receipt, &info);
    iv_receipt_get_request(item->receipt, out);
    out->max_tokens = info.id_count;
    if (out->min_tokens > info.id_count) out->min_tokens = info.id_count; /* of one that was cut, or is of few words */
    out->logprobs = -1;
}

static void note_first(cli_replayed *item, size_t position, int32_t token, float logprob, uint64_t ulps) {
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

static void note_end(cli_replayed *item, const iv_receipt_info *want, const iv_event *event) {
    item->finish = event->finish;
    item->stop = event->stop ? strdup(event->stop) : NULL;
    snprintf(item->digest, sizeof item->digest, "%s", event->digest ? event->digest : "");
    if (event->finish == IV_FINISH_ERROR) {
        item->verdict = CLI_REPLAY_FAILED;
        item->why = strdup(event->error ? event->error : "the request ended in an error");
        return;
    }
    if (item->compared < want->id_count) note_first(item, item->compared, -1, 0, 0);
    /* A cancelled or failed answer was cut where nothing in the request says so. */
    bool whole = want->finish == IV_FINISH_STOP || want->finish == IV_FINISH_LENGTH;
    bool same = !item->has_first && (!whole || same_end(want->finish, want->stop, event->finish, event->stop)) &&
                strcmp(want->digest, item->digest) == 0;
    item->verdict = same ? CLI_REPLAY_EQUAL : CLI_REPLAY_DIFFERS;
}

void cli_replay_note(cli_replayed *item, const iv_event *event) {
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

static void print_token(FILE *out, const iv_textual *textual, int32_t id) {
    size_t n = 0;
    const char *text = textual ? iv_token_string(textual, id, &n) : NULL;
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

void cli_replay_print(const cli_replayed *item, const iv_textual *textual, FILE *out) {
    iv_receipt_info want;
    iv_receipt_get_info(item->receipt, &want);
    char digits[2][32], name[CLI_SHOWN_BYTES];
    cli_shown(item->name, name);
    cli_print_safe(out, name, strlen(name), false);
    fprintf(out, "  %s", verdict_names[item->verdict]);
    if (item->verdict == CLI_REPLAY_EQUAL) fprintf(out, "  %zu tokens  %s", want.id_count, want.digest);
    if (item->why) {
        fputs(": ", out);
        cli_print_safe(out, item->why, strlen(item->why), false);
    }
    if (item->verdict == CLI_REPLAY_DIFFERS && item->has_first) {
        size_t at = item->position;
        fprintf(out, ": token %zu of %zu: wanted ", at + 1, want.id_count);
        print_token(out, textual, want.ids[at]);
        fprintf(out, " (%s), found ", iv_float_digits(want.logprobs[at], digits[0]));
        if (item->token < 0)
            fputs("the end", out);
        else {
            print_token(out, textual, item->token);
            fprintf(out, " (%s)", iv_float_digits(item->logprob, digits[1]));
        }
        if (item->ulps) fprintf(out, ", %llu ulp apart", (unsigned long long)item->ulps);
        fprintf(out, "; %zu positions differ", item->unequal);
    } else if (item->verdict == CLI_REPLAY_DIFFERS) {
        fprintf(out, ": the same %zu tokens, but wanted the end by ", want.id_count);
        print_end(out, want.finish, want.stop);
        fputs(", found ", out);
        print_end(out, item->finish, item->stop);
    }
    fputc('\n', out);
}

void cli_replay_json(const cli_replayed *item, iv_json_out *json) {
    iv_receipt_info want;
    iv_receipt_get_info(item->receipt, &want);
    iv_out_kv_open(json, NULL, '{');
    iv_out_kv_uint(json, "line", item->line);
    iv_out_kv_text(json, "verdict", verdict_names[item->verdict]);
    iv_out_kv_uint(json, "tokens", want.id_count);
    iv_out_kv_text(json, "digest", want.digest);
    iv_out_kv_text(json, "found_digest", item->digest[0] ? item->digest : NULL);
    if (item->why) iv_out_kv_text(json, "why", item->why);
    if (item->verdict == CLI_REPLAY_DIFFERS) {
        iv_out_kv_text(json, "finish", iv_finish_name(want.finish));
        iv_out_kv_text(json, "found_finish", iv_finish_name(item->finish));
        iv_out_kv_text(json, "stop", want.stop);
        iv_out_kv_text(json, "found_stop", item->stop);
        iv_out_kv_uint(json, "positions_that_differ", item->unequal);
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
