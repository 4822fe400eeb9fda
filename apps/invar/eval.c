/* eval.c: invar eval: runs every problem in every configuration, writes results as they arrive, then the report. */
#include "eval.h"
#include "answer.h"
#include "base/clock.h"
#include "commands.h"
#include "invar_model.h"
#include "lora.h"
#include "model.h"
#include "output.h"
#include "sampling.h"
#include "text.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Defaults, also in syntax.c: without them configurations could not be compared. */
enum { SEED = 42, MAX_TOKENS = 512 };

/* An answer in progress, later a record. */
typedef struct job {
    cli_buffer text;
    cli_record record;
    size_t room; /* tokens that record.top holds */
    char *receipt;
    iv_finish finish;
} job;

typedef struct eval {
    const cli_args *args;
    char model[CLI_PATH_BYTES];
    cli_dataset dataset;
    cli_configs configs;
    cli_records records;
    cli_results results;
    char *settings;
    cli_sampling sampling;
    size_t longest; /* prompt, in tokens: */
    const cli_problem *longest_of;
    /* The current configuration: jobs[i] answers problem first + i. */
    job *jobs;
    size_t first, job_count;
    cli_progress progress;
    size_t computed; /* in this run */
    double started;
} eval;

/* ---- prompts ------------------------------------------------------------------------------------------- */

static int render(const eval *e, const iv_text_model *t, const cli_problem *p, iv_text *out, iv_error *err) {
    const char *system = cli_text(e->args, "system", NULL);
    char *variables = NULL;
    json_t *messages = json_array();
    int bad = 0;
    if (system) bad |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    bad |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", p->question));
    int code = bad ? cli_fail(err, CLI_FAILED, "out of memory")
                   : cli_chat_variables(messages, cli_text(e->args, "chat-template-kwargs", NULL), &variables, err);
    if (code == CLI_OK && iv_render_chat(t, variables, strlen(variables), NULL, out, err) != IV_OK) code = CLI_FAILED;
    json_decref(messages);
    free(variables);
    return code;
}

static int make_prompt(eval *e, const iv_text_model *t, cli_problem *p, iv_error *err) {
    iv_text text = {0};
    iv_ids ids = {0};
    bool chat = !cli_has(e->args, "no-chat");
    int code = chat ? render(e, t, p, &text, err) : CLI_OK;
    if (code != CLI_OK) return code;
    const char *bytes = chat ? text.data : p->question;
    size_t n = chat ? text.bytes : strlen(p->question);
    if (iv_tokenize(t, bytes, n, !chat, &ids, err) != IV_OK) code = CLI_FAILED;
    iv_text_free(&text);
    if (code == CLI_OK && !ids.count) code = cli_fail(err, CLI_FAILED, "problem '%.60s': no tokens", p->id);
    if (code == CLI_OK && !(p->ids = calloc(ids.count, sizeof *p->ids)))
        code = cli_fail(err, CLI_FAILED, "out of memory");
    if (code == CLI_OK) {
        memcpy(p->ids, ids.data, ids.count * sizeof *p->ids);
        p->id_count = ids.count;
        if (ids.count > e->longest) e->longest = ids.count, e->longest_of = p;
    }
    iv_ids_free(&ids);
    return code;
}

static int make_prompts(eval *e, iv_error *err) {
    iv_text_model *t;
    if (iv_text_model_open(e->model, &t, err) != IV_OK) return CLI_FAILED;
    int code = CLI_OK;
    for (size_t i = 0; i < e->dataset.count && code == CLI_OK; i++) code = make_prompt(e, t, &e->dataset.items[i], err);
    iv_text_model_close(t);
    return code;
}

/* ---- settings ------------------------------------------------------------------------------------------ */

/* Templates may depend on the clock: equal questions do not imply equal prompts. */
static uint64_t prompts_hash(const cli_dataset *d) {
    uint64_t hash = CLI_HASH_START;
    for (size_t i = 0; i < d->count; i++)
        hash = cli_hash(hash, d->items[i].ids, d->items[i].id_count * sizeof *d->items[i].ids);
    return hash;
}

/* Everything that determines the results, including those of baselines, as a JSON object on one line. */
static int make_settings(eval *e, const iv_engine *engine, iv_error *err) {
    const iv_engine_options *o = &e->configs.items[0].options;
    iv_engine_info info;
    cli_buffer buffer;
    char hash[20];
    iv_engine_get_info(engine, &info);
    cli_lora_fingerprint(engine, cli_lora_name(e->args), &info);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)e->dataset.hash);
    if (cli_buffer_open(&buffer, err) != CLI_OK) return CLI_FAILED;
    iv_json_out json = {.spaced = true, .file = buffer.file};
    iv_out_kv_open(&json, NULL, '{');
    iv_out_kv_text(&json, "weights", info.weights_digest);
    iv_out_kv_text(&json, "fingerprint", info.fingerprint);
    iv_out_kv_uint(&json, "problems", e->dataset.count);
    iv_out_kv_text(&json, "dataset", hash);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)prompts_hash(&e->dataset));
    iv_out_kv_text(&json, "prompts", hash);
    iv_out_kv_text(&json, "configs", cli_text(e->args, "configs", ""));
    iv_out_kv_bool(&json, "chat", !cli_has(e->args, "no-chat"));
    iv_out_kv_text(&json, "system", cli_text(e->args, "system", NULL));
    iv_out_kv_text(&json, "chat_template_kwargs", cli_text(e->args, "chat-template-kwargs", NULL));
    iv_out_kv_uint(&json, "seed", e->sampling.request.seed);
    cli_sampling_json(&e->sampling, &json, "sampling");
    iv_out_kv_uint(&json, "max_model_len", o->max_model_len);
    iv_out_kv_uint(&json, "tensor_parallel_size", info.tensor_parallel_size);
    iv_out_kv_text(&json, "speculative", o->speculative);
    iv_out_kv_uint(&json, "max_num_seqs", info.max_num_seqs);
    iv_out_kv_uint(&json, "max_num_batched_tokens", info.max_num_batched_tokens);
    iv_out_kv_bool(&json, "prefix_caching", o->prefix_caching);
    iv_out_close(&json, '}');
    int code = cli_buffer_end(&buffer, err);
    if (code == CLI_OK && !(e->settings = strdup(buffer.data))) code = cli_fail(err, CLI_FAILED, "out of memory");
    cli_buffer_free(&buffer);
    return code;
}

static void make_sampling(eval *e, const iv_engine *engine) {
    iv_request *r = &e->sampling.request;
    cli_sampling_init(&e->sampling, engine, e->args);
    if (!r->has_seed) r->seed = SEED;
    r->has_seed = true;
    if (!r->max_tokens) r->max_tokens = MAX_TOKENS;
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    r->logprobs = info.vocab_size < CLI_EVAL_TOP ? (int)info.vocab_size : CLI_EVAL_TOP;
    r->keep_receipt = true;
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

static int make_request(void *user, size_t index, iv_request *request, iv_error *err) {
    eval *e = user;
    const cli_problem *p = &e->dataset.items[e->first + index];
    *request = e->sampling.request;
    request->ids = p->ids;
    request->id_count = p->id_count;
    return cli_buffer_open(&e->jobs[index].text, err);
}

static int note_token(job *j, const iv_event *event, iv_error *err) {
    cli_record *r = &j->record;
    r->top_count = event->top_count;
    if (r->count == j->room) {
        size_t room = j->room ? 2 * j->room : 64;
        iv_logprob *more = realloc(r->top, room * r->top_count * sizeof *more);
        if (!more) return cli_fail(err, CLI_FAILED, "out of memory");
        r->top = more;
        j->room = room;
    }
    memcpy(r->top + r->count++ * r->top_count, event->top, r->top_count * sizeof *r->top);
    return CLI_OK;
}

static int note_end(eval *e, size_t index, const iv_event *event, iv_error *err) {
    job *j = &e->jobs[index];
    cli_record *r = &j->record;
    const cli_problem *p = &e->dataset.items[e->first + index];
    if (event->finish == IV_FINISH_ERROR)
        return cli_fail(err, CLI_FAILED, "problem '%.60s': %.800s", p->id, event->error ? event->error : "failed");
    j->finish = event->finish;
    r->ids = calloc(event->id_count + 1, sizeof *r->ids);
    j->receipt = event->receipt ? strdup(event->receipt) : NULL;
    if (!r->ids || !j->receipt) return cli_fail(err, CLI_FAILED, "out of memory");
    if (event->id_count) memcpy(r->ids, event->ids, event->id_count * sizeof *r->ids);
    r->count = event->id_count;
    snprintf(r->digest, sizeof r->digest, "%s", event->digest);
    r->done = true;
    return cli_buffer_end(&j->text, err);
}

static int on_event(void *user, size_t index, const iv_event *event, iv_error *err) {
    eval *e = user;
    job *j = &e->jobs[index];
    if (event->kind == IV_EVENT_DONE) return note_end(e, index, event, err);
    fwrite(event->text, 1, event->text_bytes, j->text.file);
    return note_token(j, event, err);
}

static void job_free(job *j) {
    cli_buffer_free(&j->text);
    free(j->record.ids), free(j->record.top), free(j->receipt);
    *j = (job){0};
}

/* Scores the job, writes its line and moves its record to the report's table. */
static int hand_over(eval *e, job *j, iv_error *err) {
    const cli_problem *p = &e->dataset.items[e->results.problem];
    char found[CLI_SCORE_BYTES];
    cli_score_extract(j->text.data, found);
    j->record.correct = p->answer ? cli_score_equal(found, p->answer) : -1;
    cli_record *to = cli_record_at(&e->records, e->results.config, e->results.problem);
    cli_result result = {.record = &j->record,
                         .text = j->text.data,
                         .text_bytes = j->text.bytes,
                         .found = found,
                         .finish = iv_finish_name(j->finish),
                         .receipt = j->receipt};
    int code = cli_results_add(&e->results, &e->configs, &e->dataset, &result, err);
    if (code != CLI_OK) return code;
    *to = j->record;
    j->record = (cli_record){0};
    job_free(j);
    e->computed++;
    return CLI_OK;
}

static void show_progress(eval *e, size_t config) {
    size_t total = e->configs.count * e->dataset.count, done = config * e->dataset.count + e->results.problem;
    if (e->results.config > config) done = e->results.config * e->dataset.count;
    const char *label = e->configs.items[config].label;
    char what[CLI_LABEL_BYTES + 40];
    if (e->computed) {
        double passed = iv_now() - e->started;
        unsigned long left = (unsigned long)(passed / (double)e->computed * (double)(total - done));
        snprintf(what, sizeof what, "answers, %lu:%02lu left (%.140s)", left / 60, left % 60, label);
    } else
        snprintf(what, sizeof what, "answers (%.140s)", label);
    cli_progress_count(&e->progress, done, total, what);
}

static int on_turn(void *user, size_t ended, iv_error *err) {
    eval *e = user;
    (void)ended;
    size_t config = e->results.config;
    for (int code; e->results.config == config;) {
        job *j = &e->jobs[e->results.problem - e->first];
        if (!j->record.done) break;
        if ((code = hand_over(e, j, err)) != CLI_OK) return code;
    }
    show_progress(e, config);
    return CLI_OK;
}

/* ---- configurations ------------------------------------------------------------------------------------ */

static int open_engine(const eval *e, size_t config, iv_engine **out, iv_error *err) {
    iv_engine_options o = e->configs.items[config].options;
    o.model = e->model;
    iv_model_info info;
    if (iv_inspect(o.model, o.dtype, &info, err) != IV_OK) return CLI_FAILED;
    size_t wanted = e->longest + cli_count(e->args, "max-tokens", MAX_TOKENS), most = (size_t)info.max_positions;
    if (e->longest >= most)
        return cli_fail(err, CLI_FAILED,
                        "%s: the longest prompt, that of problem '%.60s', has %zu tokens, the model has %zu positions",
                        e->args->operands[0], e->longest_of->id, e->longest, most);
    if (!o.max_model_len) o.max_model_len = wanted < most ? wanted : most;
    int code = cli_engine_open_with(&o, e->args->operands[0], out, err);
    return code == CLI_OK ? cli_lora_load(e->args, *out, err) : code;
}

static int run_config(eval *e, iv_engine *engine, iv_error *err) {
    e->first = e->results.problem;
    e->job_count = e->dataset.count - e->first;
    e->jobs = calloc(e->job_count, sizeof *e->jobs);
    if (!e->jobs) return cli_fail(err, CLI_FAILED, "out of memory");
    iv_engine_info info;
    iv_engine_get_info(engine, &info);
    cli_workload workload = {.engine = engine,
                             .jobs = e->job_count,
                             .concurrency = info.max_num_seqs,
                             .user = e,
                             .request = make_request,
                             .event = on_event,
                             .turn = on_turn};
    int code = cli_workload_run(&workload, err);
    for (size_t i = 0; i < e->job_count; i++) job_free(&e->jobs[i]);
    free(e->jobs);
    e->jobs = NULL;
    return code;
}

/* The first engine is always opened: its model determines the sampling and the settings. */
static int start(eval *e, iv_engine **engine, iv_error *err) {
    int code = open_engine(e, 0, engine, err);
    if (code != CLI_OK) return code;
    make_sampling(e, *engine);
    code = make_settings(e, *engine, err);
    if (code == CLI_OK)
        code = cli_results_open(cli_text(e->args, "out", NULL), e->settings, &e->configs, &e->dataset, &e->records,
                                &e->results, err);
    return code;
}

static int run_configs(eval *e, iv_error *err) {
    iv_engine *engine = NULL;
    int code = start(e, &engine, err);
    size_t open = 0;
    cli_progress_start(&e->progress, "eval");
    e->started = iv_now();
    while (code == CLI_OK && e->results.config < e->configs.count) {
        if (e->results.config != open) {
            iv_engine_close(engine);
            engine = NULL;
            open = e->results.config;
            cli_progress_end(&e->progress);
            code = open_engine(e, open, &engine, err);
        }
        if (code == CLI_OK) code = run_config(e, engine, err);
    }
    iv_engine_close(engine);
    cli_progress_end(&e->progress);
    if (code > 128 && e->results.file)
        fprintf(stderr, "eval: interrupted; the same command resumes after '%s', problem %zu\n",
                e->configs.items[e->results.config].label, e->results.problem);
    return code;
}

/* ---- the report ---------------------------------------------------------------------------------------- */

static int write_file(const char *dir, const char *name, void (*write)(const cli_study *, FILE *),
                      const cli_study *study, iv_error *err) {
    char path[CLI_PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
        return cli_fail(err, CLI_FAILED, "%.80s...: path too long", dir);
    FILE *file = fopen(path, "we");
    if (!file) return cli_fail(err, CLI_FAILED, "%s: cannot write: %s", path, strerror(errno));
    write(study, file);
    bool bad = ferror(file) != 0;
    bad |= fclose(file) != 0;
    return bad ? cli_fail(err, CLI_FAILED, "%s: write failed: %s", path, strerror(errno)) : CLI_OK;
}

/* Reports are shared: local directories are left out. */
static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static int report(const eval *e, iv_error *err) {
    cli_metrics metrics;
    cli_buffer buffer;
    const char *dir = cli_text(e->args, "out", NULL);
    int code = cli_metrics_make(&e->configs, &e->dataset, &e->records, &metrics, err);
    if (code != CLI_OK) return code;
    cli_study study = {.title = cli_text(e->args, "title", "Evaluation"),
                       .model = base_name(e->args->operands[0]),
                       .dataset_path = base_name(cli_text(e->args, "dataset", "")),
                       .settings = e->settings,
                       .dataset = &e->dataset,
                       .configs = &e->configs,
                       .records = &e->records,
                       .metrics = &metrics};
    if (dir) code = write_file(dir, "report.md", cli_study_markdown, &study, err);
    if (dir && code == CLI_OK) code = write_file(dir, "report.json", cli_study_json, &study, err);
    if (dir && code == CLI_OK) code = write_file(dir, "report.svg", cli_study_svg, &study, err);
    if (code == CLI_OK) code = cli_buffer_open(&buffer, err);
    if (code == CLI_OK) {
        (cli_has(e->args, "json") ? cli_study_json : cli_study_markdown)(&study, buffer.file);
        code = cli_buffer_out(&buffer, err);
    }
    cli_metrics_free(&metrics);
    return code;
}

static int prepare(eval *e, iv_error *err) {
    const char *dataset = cli_text(e->args, "dataset", NULL);
    if (!dataset) return cli_fail(err, CLI_USAGE, "wanted --dataset FILE");
    bool chat = !cli_has(e->args, "no-chat");
    if (!chat && cli_has(e->args, "system")) return cli_fail(err, CLI_USAGE, "--system needs the chat template");
    if (!chat && cli_has(e->args, "chat-template-kwargs"))
        return cli_fail(err, CLI_USAGE, "--chat-template-kwargs needs the chat template");
    iv_engine_options base;
    iv_engine_options_init(&base);
    cli_engine_options(e->args, &base);
    int code = cli_configs_parse(cli_text(e->args, "configs", NULL), &base, &e->configs, err);
    /* The other processes serve one engine and end with it. */
    if (code == CLI_OK && e->configs.count > 1 && cli_has_other_ranks())
        code = cli_fail(err, CLI_USAGE,
                        "--configs: wanted one configuration under mpirun, found %zu (without it, tp "
                        "runs ranks as threads)",
                        e->configs.count);
    if (code == CLI_OK)
        code = cli_dataset_read(dataset, cli_count(e->args, "limit", CLI_PROBLEMS_MAX), &e->dataset, err);
    if (code == CLI_OK) code = cli_model_path(e->args->operands[0], e->model, err);
    if (code == CLI_OK) code = cli_records_open(e->configs.count, e->dataset.count, &e->records, err);
    if (code == CLI_OK) code = make_prompts(e, err);
    return code;
}

int cli_eval(const cli_args *args, iv_error *err) {
    static eval e; /* large */
    iv_error unseen;
    e = (eval){.args = args};
    int code = prepare(&e, err);
    if (code == CLI_OK) code = run_configs(&e, err);
    int closed = cli_results_close(&e.results, code == CLI_OK ? err : &unseen);
    if (code == CLI_OK) code = closed;
    if (code == CLI_OK) code = report(&e, err);
    free(e.settings);
    cli_records_free(&e.records);
    cli_configs_free(&e.configs);
    cli_dataset_free(&e.dataset);
    return code;
}
