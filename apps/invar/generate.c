/* generate.c: invar generate. */
#include "answer.h"
#include "commands.h"
#include "input.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "sampling.h"
#include "serve/server.h"
#include "text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the prompt ---------------------------------------------------------------------------------------- */

/* The prompt and the constraint of the answer. */
typedef struct prompt {
    cli_bytes file;  /* --prompt-file */
    char *variables; /* --chat */
    cli_form form;
    int32_t *ids; /* --ids */
    size_t id_count;
    iv_text text; /* the rendered text, or the text of --ids */
    iv_constraint_kind constraint;
    const char *constraint_text;
    cli_bytes constraint_file;
} prompt;

typedef struct constraint_flag {
    const char *name;
    iv_constraint_kind kind;
    bool file; /* the value is a file name */
} constraint_flag;

static const constraint_flag constraint_flags[] = {{"json-schema", IV_CONSTRAINT_JSON_SCHEMA, true},
                                                   {"regex", IV_CONSTRAINT_REGEX, false},
                                                   {"grammar", IV_CONSTRAINT_GRAMMAR, false},
                                                   {"grammar-file", IV_CONSTRAINT_GRAMMAR, true}};

static void prompt_free(prompt *p) {
    free(p->file.data);
    free(p->variables);
    free(p->constraint_file.data);
    free(p->ids);
    iv_text_free(&p->text);
}

static int check_sources(const cli_args *args, iv_error *err) {
    int sources = cli_has(args, "prompt") + cli_has(args, "prompt-file") + cli_has(args, "ids");
    if (sources != 1)
        return cli_fail(err, CLI_USAGE,
                        "wanted one of -p TEXT, --prompt-file FILE (- is standard input) and --ids 1,2,3, found %s",
                        sources ? "more" : "none");
    bool chat = cli_has(args, "chat");
    if (chat && cli_has(args, "ids")) return cli_fail(err, CLI_USAGE, "--chat needs a text, found --ids");
    if (!chat && cli_has(args, "system")) return cli_fail(err, CLI_USAGE, "--system needs --chat");
    if (!chat && cli_has(args, "chat-template-kwargs"))
        return cli_fail(err, CLI_USAGE, "--chat-template-kwargs needs --chat");
    return CLI_OK;
}

static int chat_variables(const cli_args *args, const char *text, size_t bytes, prompt *p, iv_error *err) {
    const char *instruction = cli_text(args, "system", NULL);
    json_t *messages = json_array();
    int bad = 0;
    if (instruction)
        bad |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", instruction));
    bad |= json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "user", "content", text, bytes));
    int code = bad ? cli_fail(err, CLI_FAILED, "out of memory")
                   : cli_chat_variables(messages, cli_text(args, "chat-template-kwargs", NULL), &p->variables, err);
    json_decref(messages);
    return code;
}

/* The constraint flag, of which at most one is allowed; *flag NULL: none. */
static int find_constraint(const cli_args *args, const constraint_flag **flag, iv_error *err) {
    *flag = NULL;
    for (size_t i = 0; i < sizeof constraint_flags / sizeof *constraint_flags; i++) {
        const constraint_flag *f = &constraint_flags[i];
        if (!cli_has(args, f->name)) continue;
        if (*flag) return cli_fail(err, CLI_USAGE, "--%s: cannot be combined with --%s", f->name, (*flag)->name);
        *flag = f;
    }
    return CLI_OK;
}

/* --json-schema: text that begins like JSON is the schema itself; anything else is a file name. */
static bool names_file(const constraint_flag *f, const char *text) {
    bool json = text[strspn(text, " \t\r\n")] == '{' || strcmp(text, "true") == 0;
    return f->file && !(f->kind == IV_CONSTRAINT_JSON_SCHEMA && json);
}

static int read_constraint(const cli_args *args, prompt *p, iv_error *err) {
    const constraint_flag *f;
    int code = find_constraint(args, &f, err);
    if (code != CLI_OK || !f) return code;
    const char *text = cli_text(args, f->name, NULL);
    p->constraint = f->kind, p->constraint_text = text;
    if (!names_file(f, text)) return CLI_OK;
    code = cli_read_file(text, true, &p->constraint_file, err);
    p->constraint_text = p->constraint_file.data;
    if (code != CLI_OK || strlen(p->constraint_file.data) == p->constraint_file.count) return code;
    return cli_fail(err, CLI_FAILED, "%s: wanted no NUL, found one at byte %zu", text, strlen(p->constraint_file.data));
}

/* Everything that needs no model, so that errors show before a long load. */
static int prompt_read(const cli_args *args, prompt *p, iv_error *err) {
    int code = check_sources(args, err);
    if (code == CLI_OK) code = read_constraint(args, p, err);
    if (code != CLI_OK) return code;
    if (cli_has(args, "ids")) return cli_read_ids(cli_text(args, "ids", ""), &p->ids, &p->id_count, err);
    const char *text = cli_text(args, "prompt", NULL);
    if (!text) {
        code = cli_read_file(cli_text(args, "prompt-file", "-"), true, &p->file, err);
        if (code != CLI_OK) return code;
    }
    return cli_has(args, "chat")
               ? chat_variables(args, text ? text : p->file.data, text ? strlen(text) : p->file.count, p, err)
               : CLI_OK;
}

/* As ids, so that special tokens spelled in the prompt stay text. */
static iv_status prompt_split(const iv_text_model *t, prompt *p, iv_request *r, iv_error *err) {
    iv_text marked = {0};
    iv_ids ids = {0};
    iv_status status = IV_OK;
    iv_special_mode how = p->variables ? IV_SPECIAL_MARKED : IV_SPECIAL_TEXT;
    if (p->variables) {
        status = iv_server_chat_variables(p->variables, strlen(p->variables), t, &marked, err);
        if (status == IV_OK) status = iv_render_chat(t, marked.data, marked.bytes, NULL, &p->text, err);
        r->text = p->text.data, r->text_bytes = p->text.bytes, r->add_special = false;
    }
    iv_text_free(&marked);
    if (status == IV_OK) status = iv_tokenize_as(t, r->text, r->text_bytes, r->add_special, how, &ids, err);
    if (status != IV_OK || !ids.count) return status;
    p->ids = ids.data, p->id_count = ids.count;
    r->ids = p->ids, r->id_count = p->id_count;
    iv_unmark_special(&p->text);
    r->text = NULL, r->text_bytes = 0;
    return IV_OK;
}

/* Fills the request's prompt. p->text holds the text if it was rendered or decoded. */
static int prompt_use(const cli_args *args, const iv_engine *engine, prompt *p, iv_request *r, iv_error *err) {
    const iv_text_model *t = iv_engine_text_model(engine);
    iv_status status = IV_OK;
    if (p->ids) {
        r->ids = p->ids;
        r->id_count = p->id_count;
        return CLI_OK;
    }
    const char *text = cli_text(args, "prompt", p->file.data);
    r->text = text;
    r->text_bytes = p->file.data ? p->file.count : strlen(text);
    if (cli_has(args, "split-special-tokens")) {
        status = prompt_split(t, p, r, err);
    } else if (p->variables) {
        status = iv_render_chat(t, p->variables, strlen(p->variables), NULL, &p->text, err);
        r->text = p->text.data;
        r->text_bytes = p->text.bytes;
        r->add_special = false;
    }
    return status == IV_OK ? CLI_OK : CLI_FAILED;
}

/* Depends on the prompt: reasoning before the answer is not constrained. */
static void use_constraint(const iv_engine *engine, prompt *p, iv_request *r) {
    const iv_text_model *t = iv_engine_text_model(engine);
    r->constraint = p->constraint, r->constraint_text = p->constraint_text;
    if (r->constraint != IV_CONSTRAINT_NONE && p->variables)
        r->reasoning = iv_reasoning_after(t, iv_reasoning_form_of(t), r->text, r->text_bytes);
    if (!p->variables) return;
    p->form = cli_form_of(t);
    cli_form_use(&p->form, r);
}

/* ---- events -------------------------------------------------------------------------------------------- */

typedef struct view {
    const iv_text_model *text_model;
    bool stream;         /* text to standard output as it comes */
    bool table;          /* log-probabilities as a table, else as JSON */
    cli_buffer logprobs; /* open when they are wanted */
    iv_json_out json;
} view;

static void json_logprobs(view *v, const iv_event *event) {
    size_t n = 0;
    const char *token = iv_token_string(v->text_model, event->token, &n);
    iv_json_out *json = &v->json;
    iv_out_kv_open(json, NULL, '{');
    iv_out_kv_int(json, "id", event->token);
    iv_out_kv_string(json, "token", token ? token : "", n);
    iv_out_kv_open(json, "bytes", '[');
    for (size_t i = 0; i < event->text_bytes; i++) iv_out_kv_int(json, NULL, (unsigned char)event->text[i]);
    iv_out_close(json, ']');
    iv_out_kv_shortest(json, "logprob", event->logprob);
    iv_out_kv_open(json, "top", '[');
    for (size_t i = 0; i < event->top_count; i++) {
        token = iv_token_string(v->text_model, event->top[i].id, &n);
        iv_out_kv_open(json, NULL, '{');
        iv_out_kv_int(json, "id", event->top[i].id);
        iv_out_kv_string(json, "token", token ? token : "", token ? n : 0);
        iv_out_kv_shortest(json, "logprob", event->top[i].logprob);
        iv_out_close(json, '}');
    }
    iv_out_close(json, ']');
    iv_out_close(json, '}');
}

/* One cell of the table, padded to a width in characters; the last cell of a line is not padded. */
static void print_token(view *v, int32_t id, float logprob, bool last) {
    enum { CELL = 12 };
    size_t n = 0, width = 0;
    const char *token = iv_token_string(v->text_model, id, &n);
    FILE *out = v->logprobs.file;
    fprintf(out, "%8d %10.5f ", (int)id, (double)logprob);
    if (!token) n = 0;
    cli_print_safe(out, token, n, false);
    for (size_t i = 0; i < n; i++) width += ((unsigned char)token[i] & 0xc0) != 0x80;
    fprintf(out, "%*s", last ? 0 : width < CELL ? (int)(CELL - width) : 1, "");
}

static void table_logprobs(view *v, const iv_event *event) {
    print_token(v, event->token, event->logprob, event->top_count == 0);
    for (size_t i = 0; i < event->top_count; i++) {
        fputs(i == 0 ? "|" : "", v->logprobs.file);
        print_token(v, event->top[i].id, event->top[i].logprob, i + 1 == event->top_count);
    }
    fputc('\n', v->logprobs.file);
}

static int on_event(void *user, const iv_event *event, iv_error *err) {
    view *v = user;
    if (v->logprobs.file && event->kind == IV_EVENT_TOKEN) {
        if (v->table)
            table_logprobs(v, event);
        else
            json_logprobs(v, event);
    }
    return v->stream && event->text_bytes ? cli_out_text(event->text, event->text_bytes, err) : CLI_OK;
}

/* ---- reports ------------------------------------------------------------------------------------------- */

static void print_report(const cli_answer *a, const cli_sampling *s, const iv_engine_info *info, const view *v) {
    cli_style style = cli_style_of(STDERR_FILENO);
    FILE *out = stderr;
    if (v->logprobs.bytes) {
        fprintf(out, "%s%8s %10s token%s\n", style.bold, "id", "logprob", style.plain);
        fwrite(v->logprobs.data, 1, v->logprobs.bytes, out);
    }
    fprintf(out, "%sseed %llu\nparameters ", style.dim, (unsigned long long)a->seed);
    cli_sampling_print(s, out);
    fprintf(out, "\ntokens %zu prompt, %zu generated\n", a->prompt_tokens, a->id_count);
    fprintf(out, "speed %.1f tokens/s prefill, %.1f tokens/s decode\n", cli_prefill_rate(a), cli_decode_rate(a));
    fprintf(out, "finish %s\nfingerprint %s\ndigest %s%s\n", iv_finish_name(a->finish), info->fingerprint, a->digest,
            style.plain);
}

static int write_json(const cli_args *args, const cli_answer *a, const cli_sampling *s, const iv_engine_info *info,
                      const view *v, iv_error *err) {
    const iv_request *r = &s->request;
    cli_buffer buffer;
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    iv_json_out json = {.spaced = true, .file = buffer.file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "model", args->operands[0]);
    if (r->ids) {
        iv_out_kv_text(&json, "prompt", NULL);
        iv_out_kv_open(&json, "prompt_token_ids", '[');
        for (size_t i = 0; i < r->id_count; i++) iv_out_kv_int(&json, NULL, r->ids[i]);
        iv_out_close(&json, ']');
    } else
        iv_out_kv_string(&json, "prompt", r->text, r->text_bytes);
    iv_out_kv_string(&json, "text", a->text, a->text_bytes);
    iv_out_kv_open(&json, "token_ids", '[');
    for (size_t i = 0; i < a->id_count; i++) iv_out_kv_int(&json, NULL, a->ids[i]);
    iv_out_close(&json, ']');
    iv_out_kv_uint(&json, "prompt_tokens", a->prompt_tokens);
    iv_out_kv_uint(&json, "completion_tokens", a->id_count);
    iv_out_kv_text(&json, "finish_reason", iv_finish_name(a->finish));
    iv_out_kv_uint(&json, "seed", a->seed);
    iv_out_kv_text(&json, "fingerprint", info->fingerprint);
    iv_out_kv_text(&json, "digest", a->digest);
    cli_sampling_json(s, &json, "parameters");
    iv_out_kv_open(&json, "timings", '{');
    iv_out_kv_double(&json, "load_s", info->load_seconds);
    iv_out_kv_double(&json, "prefill_s", a->prefill_seconds);
    iv_out_kv_double(&json, "decode_s", a->decode_seconds);
    iv_out_kv_double(&json, "prefill_tokens_per_s", cli_prefill_rate(a));
    iv_out_kv_double(&json, "decode_tokens_per_s", cli_decode_rate(a));
    iv_out_close(&json, '}');
    if (r->logprobs >= 0) {
        iv_out_kv_open(&json, "logprobs", '[');
        fwrite(v->logprobs.data, 1, v->logprobs.bytes, buffer.file);
        iv_out_close(&json, ']');
    }
    iv_out_close(&json, '}');
    fputc('\n', buffer.file);
    return cli_buffer_out(&buffer, err);
}

static int write_receipt(const char *path, const cli_answer *a, iv_error *err) {
    cli_buffer buffer;
    if (!a->receipt) return cli_fail(err, CLI_FAILED, "%s: no memory for the receipt", path);
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    fprintf(buffer.file, "%s\n", a->receipt);
    return cli_buffer_write(&buffer, path, err);
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int finish_output(const cli_args *args, const cli_answer *a, const cli_sampling *s, const iv_engine *engine,
                         const view *v, iv_error *err) {
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    cli_lora_fingerprint(engine, cli_lora_name(args), &info);
    const char *receipt = cli_text(args, "receipt", NULL);
    int code = receipt ? write_receipt(receipt, a, err) : CLI_OK;
    if (code == CLI_OK && !v->stream)
        code = write_json(args, a, s, &info, v, err);
    else if (code == CLI_OK && isatty(STDOUT_FILENO) && a->text_bytes && a->text[a->text_bytes - 1] != '\n')
        code = cli_out("\n", 1, err);
    if (code == CLI_OK && v->stream && !cli_has(args, "quiet")) print_report(a, s, &info, v);
    return code == CLI_OK && a->signal ? 128 + a->signal : code;
}

static int answer(const cli_args *args, iv_engine *engine, prompt *p, cli_sampling *s, iv_error *err) {
    const cli_value *logprobs = cli_find(args, "logprobs");
    view v = {
        .text_model = iv_engine_text_model(engine), .stream = !cli_has(args, "json"), .table = !cli_has(args, "json")};
    cli_sampling_init(s, engine, args);
    s->request.logprobs = logprobs ? (int)logprobs->count : -1;
    s->request.keep_receipt = cli_has(args, "receipt");
    int code = prompt_use(args, engine, p, &s->request, err);
    if (code == CLI_OK) use_constraint(engine, p, &s->request);
    if (code == CLI_OK && logprobs) code = cli_buffer_open(&v.logprobs, err);
    v.json = (iv_json_out){.spaced = true, .file = v.logprobs.file};
    if (code != CLI_OK) return code;
    cli_answer a;
    code = cli_answer_get(engine, &s->request, on_event, &v, &a, err);
    if (code == CLI_OK && logprobs) code = cli_buffer_end(&v.logprobs, err);
    if (code == CLI_OK) code = finish_output(args, &a, s, engine, &v, err);
    cli_answer_free(&a);
    cli_buffer_free(&v.logprobs);
    return code;
}

int cli_generate(const cli_args *args, iv_error *err) {
    prompt p = {0};
    iv_engine *engine = NULL;
    cli_sampling sampling;
    int code = prompt_read(args, &p, err);
    if (code == CLI_OK) code = cli_check_writable(cli_text(args, "receipt", NULL), err);
    if (code == CLI_OK) code = cli_engine_open(args, &engine, err);
    if (code == CLI_OK) code = answer(args, engine, &p, &sampling, err);
    iv_engine_close(engine);
    prompt_free(&p);
    return code;
}
