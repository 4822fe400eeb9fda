/* Training data: every form of a line, masks compared with transformers', limits, and the errors of bad lines. */
#include "format/scratch.h"
#include "base/digest.h"
#include "format/json.h"
#include "train/data/data.h"

/* ---- helpers ---- */

static const iv_train_data_options sft = {.path = "data.jsonl", .kind = IV_TRAIN_SFT, .vocab_size = 512};
static const iv_train_data_options rl = {.path = "data.jsonl", .kind = IV_TRAIN_RL, .vocab_size = 512};
static iv_text_model *tiny; /* tiny-math: ChatML without generation tags */

static int open_tiny(void **state) {
    iv_error err;
    (void)state;
    ASSERT_OK(iv_text_model_open(source_path("models/tiny-math"), &tiny, &err), &err);
    return 0;
}

static int close_tiny(void **state) {
    (void)state;
    iv_text_model_close(tiny);
    return 0;
}

/* With a tokenizer, ids go up to its vocabulary, unless a test says otherwise. */
static iv_train_data_options adapted(const iv_train_data_options *o, const iv_text_model *text) {
    iv_train_data_options own = *o;
    if (text && own.vocab_size == 512) own.vocab_size = 0;
    return own;
}

static iv_train_data *parse(const iv_train_data_options *o, const iv_text_model *text, const char *lines) {
    iv_error err;
    iv_train_data *d = NULL;
    iv_train_data_options own = adapted(o, text);
    ASSERT_OK(iv_train_data_parse(&own, text, lines, strlen(lines), &d, &err), &err);
    return d;
}

static void assert_bytes_fail(const iv_train_data_options *o, const iv_text_model *text, const char *lines, size_t n,
                              iv_status status, const char *wanted) {
    iv_error err = {0};
    iv_train_data *d = NULL;
    iv_train_data_options own = adapted(o, text);
    iv_status got = iv_train_data_parse(&own, text, lines, n, &d, &err);
    if (got != status || !strstr(err.message, wanted))
        fail_msg("%.200s\nwanted %d and '%s', found %d and '%s'", lines, status, wanted, got, err.message);
}

static void assert_fails(const iv_train_data_options *o, const iv_text_model *text, const char *lines,
                         const char *wanted) {
    assert_bytes_fail(o, text, lines, strlen(lines), IV_FORMAT, wanted);
}

/* The ids' text, and the text of the masked ids, with '|' where the mask begins. */
static void assert_text(const iv_text_model *text, iv_train_example e, const char *whole, const char *learned) {
    iv_error err;
    iv_text all;
    iv_buf got = {0};
    ASSERT_OK(iv_detokenize(text, e.ids, e.count, true, &all, &err), &err);
    assert_string_equal(all.data, whole);
    iv_text_free(&all);
    iv_buf_puts(&got, "");
    for (size_t i = 0; i < e.count; i++) {
        if (!(e.mask[i] > 0)) continue;
        if (i == 0 || !(e.mask[i - 1] > 0)) iv_buf_putc(&got, '|');
        ASSERT_OK(iv_detokenize(text, e.ids + i, 1, true, &all, &err), &err);
        iv_buf_append(&got, all.data, all.bytes);
        iv_text_free(&all);
    }
    assert_string_equal(got.data, learned);
    iv_buf_free(&got);
}

static void assert_learns(const char *line, const char *whole, const char *learned) {
    iv_train_data *d = parse(&sft, tiny, line);
    assert_text(tiny, iv_train_data_example(d, 0), whole, learned);
    iv_train_data_close(d);
}

/* tiny-math's tokenizer with another chat template. */
typedef struct other_template {
    iv_text_model text;
    scratch dir;
} other_template;

static other_template with_template(const char *jinja) {
    other_template t;
    iv_error err;
    scratch_open(&t.dir);
    scratch_write(&t.dir, "chat_template.jinja", jinja, strlen(jinja));
    t.text = (iv_text_model){.tokenizer = tiny->tokenizer, .eos_id = tiny->eos_id};
    ASSERT_OK(iv_chat_template_open(t.dir.dir, &t.text.chat, &err), &err);
    return t;
}

static void close_template(other_template *t) {
    iv_chat_template_close(t->text.chat);
    scratch_close(&t->dir);
}

/* ---- masks as transformers has them ---- */

static iv_tokenizer *open_tokenizer(const json_t *own, const char *place) {
    iv_tokenizer *t = NULL;
    iv_error err;
    const char *name = strchr(place, ':') + 1;
    if (strncmp(place, "own:", 4) == 0) {
        const json_t *text = json_object_get(own, name);
        ASSERT_OK(iv_tokenizer_parse(name, json_string_value(text), json_string_length(text), &t, &err), &err);
        return t;
    }
    char relative[200];
    snprintf(relative, sizeof relative, "tokenizers/%s", name);
    const char *dir = strncmp(place, "shared:", 7) == 0 ? shared_path(relative) : source_path(name);
    if (!dir) {
        printf("SKIPPED: %s is missing (set INVAR_SHARED)\n", relative);
        return NULL;
    }
    ASSERT_OK(iv_tokenizer_open(dir, &t, &err), &err);
    return t;
}

/* Reads the case's line with this model; ids and mask are those of the case. */
static void check_line(const iv_text_model *text, const json_t *c) {
    iv_error err;
    iv_train_data *d;
    const json_t *kind = json_object_get(c, "kind"), *ids = json_object_get(c, "ids");
    const char *mask = json_string_value(json_object_get(c, "mask"));
    iv_train_data_options o = kind && strcmp(json_string_value(kind), "rl") == 0 ? rl : sft;
    char *line = json_dumps(json_object_get(c, "line"), JSON_COMPACT);
    o.vocab_size = 0;
    ASSERT_OK(iv_train_data_parse(&o, text, line, strlen(line), &d, &err), &err);
    iv_train_example e = iv_train_data_example(d, 0);
    for (size_t i = 0; i < e.count && i < json_array_size(ids); i++) {
        int wanted = (int)json_integer_value(json_array_get(ids, i));
        if (e.ids[i] != wanted || e.mask[i] != (mask[i] == '1' ? 1.0f : 0.0f))
            fail_msg("%s, %s: token %zu of %zu: wanted %d with mask %c, found %d with mask %g",
                     json_string_value(json_object_get(c, "tokenizer")), line, i, e.count, wanted, mask[i],
                     (int)e.ids[i], (double)e.mask[i]);
    }
    assert_int_equal(e.count, json_array_size(ids));
    iv_train_data_close(d);
    free(line);
}

static void check_case(iv_tokenizer *tokenizer, const json_t *c) {
    other_template t;
    iv_error err;
    const char *jinja = json_string_value(json_object_get(c, "template"));
    const char config[] = "{\"bos_token\": \"<|begin_of_text|>\"}";
    scratch_open(&t.dir);
    scratch_write(&t.dir, "chat_template.jinja", jinja, strlen(jinja));
    scratch_write(&t.dir, "tokenizer_config.json", config, strlen(config));
    t.text = (iv_text_model){.tokenizer = tokenizer, .eos_id = -1};
    ASSERT_OK(iv_chat_template_open(t.dir.dir, &t.text.chat, &err), &err);
    check_line(&t.text, c);
    close_template(&t);
}

static json_t *read_cases(void) {
    json_t *root;
    iv_error err;
    ASSERT_OK(iv_json_read(source_path("tests/data/chat_masks.json"), 1 << 24, &root, &err), &err);
    return root;
}

static void masks_are_those_of_transformers(void **state) {
    (void)state;
    json_t *root = read_cases(), *c;
    char open[100] = "";
    iv_tokenizer *tokenizer = NULL;
    size_t i;
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 50);
    json_array_foreach(cases, i, c) {
        const char *place = json_string_value(json_object_get(c, "tokenizer"));
        if (strcmp(place, open) != 0) {
            iv_tokenizer_close(tokenizer);
            tokenizer = open_tokenizer(json_object_get(root, "own"), place);
            snprintf(open, sizeof open, "%s", place);
        }
        if (tokenizer) check_case(tokenizer, c);
    }
    iv_tokenizer_close(tokenizer);
    json_decref(root);
}

/* Published tokenizers with their own templates: turns by prefixes, strings as TRL joins them, prompts. */
static void published_models_give_the_reference_tokens(void **state) {
    (void)state;
    SKIP_WITHOUT(shared_path("tokenizers/qwen3"), "shared/tokenizers");
    json_t *root = read_cases(), *c;
    char open[100] = "", relative[200];
    iv_text_model *text = NULL;
    iv_error err;
    size_t i;
    const json_t *cases = json_object_get(root, "models");
    assert_true(json_array_size(cases) > 30);
    json_array_foreach(cases, i, c) {
        const char *name = json_string_value(json_object_get(c, "tokenizer"));
        snprintf(relative, sizeof relative, "tokenizers/%s", name);
        assert_non_null(shared_path(relative));
        if (strcmp(name, open) != 0) {
            iv_text_model_close(text);
            ASSERT_OK(iv_text_model_open(shared_path(relative), &text, &err), &err);
            snprintf(open, sizeof open, "%s", name);
        }
        check_line(text, c);
    }
    iv_text_model_close(text);
    json_decref(root);
}

/* ---- conversations ---- */

#define USER "{\"role\": \"user\", \"content\": \"2+3?\"}"
#define SAYS "{\"role\": \"assistant\", \"content\": \"5\"}"

static void finds_turns_by_prefixes(void **state) {
    (void)state;
    assert_learns("{\"messages\": [" USER ", " SAYS "]}",
                  "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n", "|5<|im_end|>");
    assert_learns("{\"messages\": [" USER ", " SAYS ", " USER
                  ", {\"role\": \"assistant\", \"content\": \"So 5.\\n\\n\"}]}",
                  "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
                  "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\nSo 5.\n\n<|im_end|>\n",
                  "|5<|im_end|>|So 5.\n\n<|im_end|>");
    assert_learns("{\"prompt\": [" USER ", " SAYS ", " USER "], \"completion\": [" SAYS "]}",
                  "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
                  "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n",
                  "|5<|im_end|>");
}

static void finds_turns_by_generation_tags(void **state) {
    (void)state;
    static const char *line = "{\"prompt\": [" USER ", " SAYS ", " USER "], \"completion\": [" SAYS "]}";
    other_template t = with_template("{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}"
                                     "{% generation %}{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}"
                                     "{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
    iv_train_data *d = parse(&sft, &t.text, line);
    assert_text(tiny, iv_train_data_example(d, 0), "u:2+3?a:5.u:2+3?a:5.", "|5.");
    iv_train_data_close(d);
    d = parse(&sft, &t.text, "{\"messages\": [" SAYS ", " USER ", " SAYS "]}");
    assert_text(tiny, iv_train_data_example(d, 0), "a:5.u:2+3?a:5.", "|5.|5.");
    iv_train_data_close(d);
    close_template(&t);
}

static void refuses_templates_that_hide_the_turns(void **state) {
    (void)state;
    const char *line = "{\"messages\": [" USER ", " SAYS ", " USER ", " SAYS "]}";
    other_template t =
        with_template("{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}");
    assert_fails(&sft, &t.text, line, "data.jsonl:1: message 1: the chat template has no generation mask");
    assert_fails(&sft, &t.text, line, "{% generation %}");
    close_template(&t);
    t = with_template(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% if not loop.last %}<old>{% endif %}{% endif %}"
        "{{ m.content }}{% endfor %}");
    assert_fails(&sft, &t.text, line, "message 1: the chat template has no generation mask, and it writes this turn");
    close_template(&t);
    t = with_template(
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if 0 %}{% generation %}{% endgeneration %}{% endif %}");
    assert_fails(&sft, &t.text, line, "data.jsonl:1: wanted at least one token to learn, found a mask that is zero");
    close_template(&t);
    t = with_template("{% macro f() %}{% generation %}x{% endgeneration %}{% endmacro %}{% set y = f() %}abc{{ y }}");
    assert_bytes_fail(&sft, &t.text, line, strlen(line), IV_TEMPLATE, "inside of a macro, call, filter or set");
    close_template(&t);
    t = with_template("{{ raise_exception('roles!') }}");
    iv_error err;
    iv_train_data *d;
    assert_int_equal(iv_train_data_parse(&sft, &t.text, line, strlen(line), &d, &err), IV_TEMPLATE);
    assert_non_null(strstr(err.message, "data.jsonl:1: "));
    assert_non_null(strstr(err.message, "roles!"));
    close_template(&t);
}

static void passes_tools_variables_and_a_fixed_date(void **state) {
    (void)state;
    other_template t = with_template("{{ tools | tojson }} {{ mood }} {{ strftime_now('%Y') }} "
                                     "{% generation %}{{ messages[0].content }}{% endgeneration %}");
    iv_train_data_options o = sft;
    const char *line =
        "{\"messages\": [" SAYS "], \"tools\": \"[{\\\"a\\\": 1}]\", \"chat_template_kwargs\": {\"mood\": \"m\"}}";
    iv_train_data *d = parse(&o, &t.text, line);
    assert_text(tiny, iv_train_data_example(d, 0), "[{\"a\": 1}] m 26 Jul 2024 5", "|5");
    iv_train_data_close(d);
    o.date = "today";
    d = parse(&o, &t.text, "{\"messages\": [" SAYS "], \"tools\": [3], \"chat_template_kwargs\": null}");
    assert_text(tiny, iv_train_data_example(d, 0), "[3]  today 5", "|5");
    iv_train_data_close(d);
    assert_fails(&o, &t.text, "{\"messages\": [" SAYS "], \"tools\": {}}", "tools: wanted a list, found");
    assert_fails(&o, &t.text, "{\"messages\": [" SAYS "], \"tools\": \"[\"}",
                 "data.jsonl:1: tools:1:1: not valid JSON");
    assert_fails(&o, &t.text, "{\"messages\": [" SAYS "], \"chat_template_kwargs\": 3}", "wanted an object, found 3");
    assert_fails(&o, &t.text, "{\"messages\": [" SAYS "], \"chat_template_kwargs\": {\"messages\": []}}",
                 "wanted other variables");
    close_template(&t);
}

static void refuses_bad_messages(void **state) {
    (void)state;
    assert_fails(&sft, tiny, "{\"messages\": 3}", "data.jsonl:1: messages: wanted a list of messages, found 3");
    assert_fails(&sft, tiny, "{\"messages\": []}", "messages: wanted at least one message, found none");
    assert_fails(&sft, tiny, "{\"messages\": [1]}", "messages[0]: wanted an object, found 1");
    assert_fails(&sft, tiny, "{\"messages\": [{}]}",
                 "messages[0].role: wanted system, user, assistant or tool, found nothing");
    assert_fails(&sft, tiny, "{\"messages\": [{\"role\": \"user\", \"content\": 4}]}",
                 "messages[0].content: wanted a string or a list of parts, found 4");
    assert_fails(&sft, tiny, "{\"messages\": [" USER "]}", "the role \"assistant\" to learn, found none");
    assert_fails(&sft, tiny, "{\"prompt\": [" USER "], \"completion\": [" USER "]}", "completion: wanted at least one");
    assert_fails(&sft, tiny, "{\"prompt\": [" USER "], \"completion\": \"x\"}",
                 "completion: wanted a list of messages");
    assert_fails(&sft, NULL, "{\"messages\": [" USER ", " SAYS "]}", "wanted \"ids\", as there is no tokenizer");
}

/* ---- turns that are left out ---- */

#define LEFT(how) "{\"role\": \"assistant\", \"content\": \"7\", " how "}"
#define TAGGED                                                                                             \
    "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}" \
    "{% endgeneration %}{% if m.tool_calls %}{% generation %}!{% endgeneration %}{% endif %}{% else %}"    \
    "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"

static void leaves_out_turns_of_weight_zero(void **state) {
    (void)state;
    static const char *const ways[] = {"\"weight\": 0", "\"weight\": 0.0", "\"train\": false",
                                       "\"train\": false, \"weight\": 0"};
    other_template t = with_template(TAGGED);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char line[600];
        snprintf(line, sizeof line,
                 "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"7\", %s, \"tool_calls\": "
                 "[{\"name\": \"f\"}]}, " USER ", {\"role\": \"assistant\", \"content\": \"5\", \"weight\": 1}]}",
                 ways[i]);
        iv_train_data *d = parse(&sft, &t.text, line);
        assert_text(tiny, iv_train_data_example(d, 0), "u:2+3?a:7!u:2+3?a:5", "|5");
        iv_train_data_close(d);
        snprintf(line, sizeof line,
                 "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"7\", %s}, " USER ", " SAYS "]}",
                 ways[i]);
        assert_learns(line,
                      "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n"
                      "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n",
                      "|5<|im_end|>");
    }
    iv_train_data *d = parse(&sft, &t.text,
                             "{\"prompt\": [" USER "], \"completion\": [" SAYS ", " USER
                             ", " LEFT("\"train\": false") ", " USER ", " SAYS "]}");
    assert_text(tiny, iv_train_data_example(d, 0), "u:2+3?a:5u:2+3?a:7u:2+3?a:5", "|5|5");
    iv_train_data_close(d);
    close_template(&t);
}

static void refuses_bad_weights(void **state) {
    (void)state;
    static const struct {
        const char *how, *wanted;
    } cases[] = {{"\"weight\": 0.5", "data.jsonl:1: messages[1].weight: wanted 0 or 1, found 0.5"},
                 {"\"weight\": -1", "messages[1].weight: wanted 0 or 1, found -1"},
                 {"\"weight\": \"0\"", "messages[1].weight: wanted 0 or 1, found \"0\""},
                 {"\"train\": 0", "messages[1].train: wanted true or false, found 0"},
                 {"\"train\": true, \"weight\": 0", "wanted \"train\" and \"weight\" to agree"},
                 {"\"trian\": false", "messages[1].trian: this field is not known here"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[400];
        snprintf(line, sizeof line, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"7\", %s}]}",
                 cases[i].how);
        assert_fails(&sft, tiny, line, cases[i].wanted);
    }
    assert_fails(&sft, tiny, "{\"messages\": [" USER ", " LEFT("\"weight\": 0") "]}", "to learn, found none");
    assert_fails(&sft, tiny, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 1}, " SAYS "]}",
                 "messages[0].weight: wanted it on a message of the assistant");
}

static void refuses_unknown_members(void **state) {
    (void)state;
    assert_fails(&sft, tiny, "{\"messages\": [" USER ", " SAYS "], \"weight\": 2}",
                 "data.jsonl:1: weight: this member");
    assert_fails(&sft, tiny, "{\"text\": \"a\", \"label\": 1}", "label: this member is not known here");
    assert_fails(&sft, tiny, "{\"text\": \"a\", \"mask\": [1]}", "mask: wanted \"ids\" with it");
    assert_fails(&sft, tiny, "{\"text\": \"a\", \"completion\": \"b\"}", "completion: wanted \"prompt\" with it");
    assert_fails(&rl, tiny, "{\"problem\": \"a\", \"difficulty\": 3}", "difficulty: this member is not known here");
    iv_train_data_options program = rl;
    program.any_members = true;
    iv_train_data_close(parse(&program, tiny, "{\"problem\": \"a\", \"difficulty\": 3}"));
    iv_train_data_close(parse(&sft, tiny, "{\"text\": \"a\", \"id\": 1, \"metadata\": {\"x\": 1}, \"label\": null}"));
}

/* ---- other forms ---- */

static void learns_text_and_completions(void **state) {
    (void)state;
    iv_text_model text = *tiny;
    int32_t eos = tiny->eos_id;
    assert_true(eos >= 0);
    size_t n;
    char whole[100], learned[100];
    const char *end = iv_token_string(tiny, eos, &n);
    snprintf(whole, sizeof whole, "12 + 3 = 15%.*s", (int)n, end);
    snprintf(learned, sizeof learned, "|%s", whole + 1);
    assert_learns("{\"text\": \"12 + 3 = 15\", \"source\": \"elsewhere\"}", whole, learned);
    snprintf(learned, sizeof learned, "| 15%.*s", (int)n, end);
    iv_train_data *d = parse(&sft, tiny, "{\"prompt\": \"12 + 3 =\", \"completion\": \" 15\"}");
    iv_train_example e = iv_train_data_example(d, 0);
    assert_text(tiny, e, whole, learned);
    assert_int_equal(e.ids[e.count - 1], eos);
    assert_int_equal(e.prompt_count, e.count - 1 - (iv_train_data_counts(d).masked - 1));
    iv_train_data_close(d);
    text.eos_id = -1;
    d = parse(&sft, &text, "{\"text\": \"12 + 3 = 15\"}");
    assert_text(tiny, iv_train_data_example(d, 0), "12 + 3 = 15", "|2 + 3 = 15");
    iv_train_data_close(d);
    assert_fails(&sft, tiny, "{\"prompt\": \"a\"}", "completion: wanted a string, found nothing");
    assert_fails(&sft, tiny, "{\"prompt\": 1}", "prompt: wanted a string or a list of messages, found 1");
    assert_fails(&sft, tiny, "{\"text\": 1}", "text: wanted a string, found 1");
    assert_fails(&sft, &text, "{\"text\": \"\"}", "wanted at least one token, found none");
    assert_fails(&sft, &text, "{\"text\": \"1\"}", "wanted at least one token to learn");
}

static void reads_ids_and_masks(void **state) {
    (void)state;
    iv_train_data *d =
        parse(&sft, NULL,
              "\xef\xbb\xbf{\"ids\": [1, 2, 511]}\r\n\n  \t\r\n{\"mask\": [0, 0, 0.1, 2], \"ids\": [4, 3, 2, 0]}");
    assert_int_equal(iv_train_data_count(d), 2);
    iv_train_example e = iv_train_data_example(d, 0);
    assert_int_equal(e.count, 3);
    assert_int_equal(e.prompt_count, 1);
    assert_int_equal(e.ids[2], 511);
    assert_true(e.mask[0] == 0 && e.mask[1] == 1 && e.mask[2] == 1);
    assert_int_equal(e.line_number, 1);
    e = iv_train_data_example(d, 1);
    assert_int_equal(e.line_number, 4);
    assert_int_equal(e.prompt_count, 2);
    assert_true(e.mask[2] == 0.1f && e.mask[3] == 2);
    assert_memory_equal(e.line, "{\"mask\": [0, 0, 0.1, 2], \"ids\": [4, 3, 2, 0]}", e.line_bytes);
    iv_train_data_report r = iv_train_data_counts(d);
    assert_true(r.examples == 2 && r.tokens == 7 && r.masked == 4 && r.longest == 4 && r.dropped == 0);
    iv_train_data_close(d);
}

static void refuses_bad_ids_and_masks(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"ids\": [1, 512]}", "data.jsonl:1: ids[1]: wanted a token id from 0 to 511, found 512"},
        {"{\"ids\": [-1]}", "ids[0]: wanted a token id from 0 to 511, found -1"},
        {"{\"ids\": [1, 1.0]}", "ids[1]: wanted a token id from 0 to 511, found 1.0"},
        {"{\"ids\": [1, 1e30]}", "ids[1]: wanted a token id"},
        {"{\"ids\": [1, 4294967297]}", "ids[1]: wanted a token id"},
        {"{\"ids\": [1, true]}", "ids[1]: wanted a token id"},
        {"{\"ids\": {}}", "ids: wanted a list of token ids, found"},
        {"{\"ids\": []}", "wanted at least one token, found none"},
        {"{\"ids\": [7]}", "wanted at least one token to learn, found a mask that is zero for all 1 tokens"},
        {"{\"ids\": [1, 2], \"mask\": [0, 0]}", "a mask that is zero for all 2 tokens"},
        {"{\"ids\": [1, 2], \"mask\": [0, 1e-60]}", "a mask that is zero for all 2 tokens"},
        {"{\"ids\": [1, 2], \"mask\": [0]}", "mask: wanted 2 numbers, one for each id, found 1"},
        {"{\"ids\": [1, 2], \"mask\": [1, 1]}", "mask[0]: wanted 0, as nothing predicts the first token, found 1"},
        {"{\"ids\": [1, 2], \"mask\": [0, -0.5]}", "mask[1]: wanted a number of at least 0"},
        {"{\"ids\": [1, 2], \"mask\": [0, 1e39]}", "mask[1]: wanted a number of at least 0"},
        {"{\"ids\": [1, 2], \"mask\": [0, NaN]}", "data.jsonl:1:"},
        {"{\"ids\": [1, 2], \"mask\": [0, \"1\"]}", "mask[1]: wanted a number of at least 0"},
        {"{\"ids\": [1, 2], \"mask\": 1}", "mask: wanted a list of numbers, found 1"},
        {"{\"ids\": [1, 2]}\n{\"ids\": [1 2]}", "data.jsonl:2:"},
        {"{\"ids\": [1, 2]}\n\n{\"ids\": [1, 2]", "data.jsonl:3:"},
        {"{\"ids\": [1, 2], \"ids\": [1]}", "one object has a key twice"},
        {"[1]", "line: wanted a JSON object, found"},
        {"{}", "wanted \"messages\", \"prompt\" with \"completion\", \"text\" or \"ids\", found no key"},
        {"{\"conversations\": [], \"b\": 2}", "found \"conversations\", \"b\""},
        {"{\"ids\": [1, 2], \"text\": \"a\"}", "found both \"text\" and \"ids\""},
        {"{\"ids\": null}", "found \"ids\""},
        {"{\"text\": \"a\"}", "wanted \"ids\", as the model has no tokenizer"},
        {"", "data.jsonl: wanted a JSON object a line, found an empty file"},
        {"\n \n\t\r\n", "found blank lines only"},
        {"\xef\xbb\xbf", "found blank lines only"},
        {"{\"ids\": [1, 2], \"x\": \"\xff\"}", "data.jsonl:1:"},
        {"{\"ids\": [1, 2]}\n\xef\xbb\xbf{\"ids\": [1, 2]}", "data.jsonl:2: not valid JSON: found a byte order mark"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_fails(&sft, NULL, bad[i][0], bad[i][1]);
    assert_bytes_fail(&sft, NULL, "{\"ids\": [1, 2]}\0", 16, IV_FORMAT, "data.jsonl:1:");
}

static void reads_prompts_and_answers(void **state) {
    (void)state;
    const char *prompt = "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n";
    iv_train_data *d =
        parse(&rl, tiny,
              "{\"problem\": \"2+3?\", \"answer\": \"5\"}\n{\"question\": \"2+3?\", \"answer\": 5.50}\n"
              "{\"prompt\": \"2+3?\", \"answer\": null}\n{\"messages\": [" USER "], \"answer\": \"a\\u0000b\"}\n"
              "{\"prompt\": [" USER "], \"answer\": \"\"}");
    static const char *const answers[] = {"5", "5.50", NULL, "a", ""};
    static const size_t bytes[] = {1, 4, 0, 3, 0};
    assert_int_equal(iv_train_data_count(d), 5);
    for (size_t i = 0; i < 5; i++) {
        iv_train_example e = iv_train_data_example(d, i);
        assert_text(tiny, e, prompt, "");
        assert_int_equal(e.prompt_count, e.count);
        assert_int_equal(e.answer_bytes, bytes[i]);
        if (answers[i])
            assert_string_equal(e.answer, answers[i]);
        else
            assert_null(e.answer);
    }
    iv_train_data_close(d);
    iv_text_model plain = *tiny;
    plain.chat = NULL;
    d = parse(&rl, &plain, "{\"problem\": \"2+3?\"}\n{\"ids\": [3, 4]}");
    assert_text(tiny, iv_train_data_example(d, 0), "2+3?", "");
    assert_int_equal(iv_train_data_example(d, 1).ids[1], 4);
    iv_train_data_close(d);
}

static void reads_the_problems_of_tiny_math(void **state) {
    (void)state;
    iv_train_data_options o = {.kind = IV_TRAIN_RL, .need_answer = true};
    iv_train_data *d;
    iv_error err;
    o.path = source_path("models/tiny-math/problems.jsonl");
    ASSERT_OK(iv_train_data_open(&o, tiny, &d, &err), &err);
    assert_int_equal(iv_train_data_count(d), 1000);
    iv_train_example e = iv_train_data_example(d, 1);
    assert_text(tiny, e, "<|im_start|>user\nCompute 10 - 39.<|im_end|>\n<|im_start|>assistant\n", "");
    assert_string_equal(e.answer, "-29");
    iv_train_data_close(d);
}

static void refuses_bad_prompts(void **state) {
    (void)state;
    iv_train_data_options need = rl;
    need.need_answer = true;
    assert_fails(&need, tiny, "{\"problem\": \"a\"}",
                 "data.jsonl:1: answer: wanted a string or a number, found nothing");
    assert_fails(&rl, tiny, "{\"problem\": \"a\", \"answer\": [1]}", "answer: wanted a string or a number, found");
    assert_fails(&rl, tiny, "{\"problem\": 3}", "problem: wanted a string or a list of messages, found 3");
    assert_fails(&rl, tiny, "{\"problem\": \"a\", \"question\": \"b\"}", "found both \"problem\" and \"question\"");
    assert_fails(&rl, tiny, "{\"messages\": [" USER ", " SAYS "]}", "found the assistant's message at the end");
    assert_fails(&rl, tiny, "{\"text\": \"a\"}",
                 "wanted \"messages\", \"problem\", \"question\", \"prompt\" or \"ids\", found \"text\"");
}

/* ---- lengths, digest, files ---- */

static void limits_lengths(void **state) {
    (void)state;
    const char *lines =
        "{\"ids\": [1, 2, 3]}\n{\"ids\": [1, 2, 3, 4, 5]}\n{\"ids\": [1, 2, 3, 4], \"mask\": [0, 0, 0, 1]}";
    iv_train_data_options o = sft;
    o.max_length = 3;
    assert_fails(&o, NULL, lines, "data.jsonl:2: wanted at most 3 tokens, found 5");
    o.longer = IV_TRAIN_LONGER_DROP;
    iv_train_data *d = parse(&o, NULL, lines);
    iv_train_data_report r = iv_train_data_counts(d);
    assert_true(r.examples == 1 && r.dropped == 2 && r.truncated == 0 && r.longest == 3);
    iv_train_data_close(d);
    o.longer = IV_TRAIN_LONGER_TRUNCATE;
    d = parse(&o, NULL, lines);
    r = iv_train_data_counts(d);
    assert_true(r.examples == 2 && r.dropped == 1 && r.truncated == 1 && r.tokens == 6);
    assert_int_equal(iv_train_data_example(d, 1).count, 3);
    iv_train_data_close(d);
    o.max_length = 2, o.longer = IV_TRAIN_LONGER_DROP;
    assert_fails(&o, NULL, lines, "wanted examples of at most 2 tokens, found 3 longer ones only");
    o.max_length = 1;
    assert_bytes_fail(&o, NULL, lines, strlen(lines), IV_INVALID, "found 1");
    o = rl, o.longer = IV_TRAIN_LONGER_TRUNCATE, o.max_length = 9;
    assert_bytes_fail(&o, NULL, lines, strlen(lines), IV_INVALID, "a cut prompt");
    o = sft, o.vocab_size = 0;
    assert_bytes_fail(&o, NULL, lines, strlen(lines), IV_INVALID, "vocab_size");
    o = sft, o.vocab_size = 5;
    assert_fails(&o, tiny, "{\"text\": \"12 + 3 = 15\"}", "wanted an id from 0 to 4");
}

static void digest_of(const iv_train_data_options *o, const char *lines, uint8_t out[32]) {
    iv_train_data *d = parse(o, NULL, lines);
    iv_train_data_digest(d, out);
    iv_train_data_close(d);
}

static void digests_tokens_masks_and_answers(void **state) {
    (void)state;
    /* By hand, as docs/formats/training_data.md says it. */
    static const unsigned char bytes[] = "invar training data 1\0"
                                         "\1\0\0\0"
                                         "\1\0\0\0\0\0\0\0"
                                         "\2\0\0\0\0\0\0\0"
                                         "\1\0\0\0\377\1\0\0"
                                         "\0\0\0\0\0\0\0\0"
                                         "\1\0\0\0\0\0\0\0"
                                         "7";
    uint8_t a[32], b[32];
    iv_digest_of(bytes, sizeof bytes - 1, a);
    digest_of(&rl, "{\"ids\": [1, 511], \"answer\": \"7\"}", b);
    assert_memory_equal(a, b, 32);
    digest_of(&rl, "\n{\"answer\": 7, \"ids\": [1,  511], \"metadata\": 1}\r\n", b);
    assert_memory_equal(a, b, 32);
    static const char *const other[] = {"{\"ids\": [1, 511]}", "{\"ids\": [1, 511], \"answer\": \"\"}",
                                        "{\"ids\": [1, 510], \"answer\": 7}", "{\"ids\": [1, 511], \"answer\": 8}"};
    for (size_t i = 0; i < 4; i++) {
        digest_of(&rl, other[i], b);
        assert_memory_not_equal(a, b, 32);
    }
    digest_of(&sft, "{\"ids\": [1, 2, 3]}", a);
    digest_of(&sft, "{\"ids\": [1, 2, 3], \"mask\": [0, 1, 1.0]}", b);
    assert_memory_equal(a, b, 32);
    digest_of(&sft, "{\"ids\": [1, 2, 3], \"mask\": [0, 1, 0.99999999]}", b);
    assert_memory_equal(a, b, 32); /* rounds to 1 */
    digest_of(&sft, "{\"ids\": [1, 2, 3], \"mask\": [0, 1, 0.9999999]}", b);
    assert_memory_not_equal(a, b, 32);
}

static void opens_files(void **state) {
    (void)state;
    scratch s;
    iv_error err;
    iv_train_data *d;
    char path[4200];
    iv_train_data_options o = sft;
    const char *lines = "{\"ids\": [1, 2]}\n{\"ids\": [1, 600]}\n";
    scratch_open(&s);
    snprintf(path, sizeof path, "%s/a.jsonl", s.dir);
    o.path = path;
    assert_int_equal(iv_train_data_open(&o, NULL, &d, &err), IV_NOT_FOUND);
    scratch_write(&s, "a.jsonl", lines, strlen(lines));
    assert_int_equal(iv_train_data_open(&o, NULL, &d, &err), IV_FORMAT);
    assert_non_null(strstr(err.message, "a.jsonl:2: ids[1]"));
    o.vocab_size = 601;
    ASSERT_OK(iv_train_data_open(&o, NULL, &d, &err), &err);
    assert_int_equal(iv_train_data_count(d), 2);
    iv_train_data_close(d);
    int saved = dup(STDIN_FILENO);
    assert_non_null(freopen(path, "r", stdin));
    o.path = "-";
    ASSERT_OK(iv_train_data_open(&o, NULL, &d, &err), &err);
    assert_int_equal(iv_train_data_count(d), 2);
    iv_train_data_close(d);
    o.vocab_size = 600;
    assert_int_equal(lseek(STDIN_FILENO, 0, SEEK_SET), 0);
    assert_int_equal(iv_train_data_open(&o, NULL, &d, &err), IV_FORMAT);
    assert_non_null(strstr(err.message, "standard input:2: ids[1]"));
    dup2(saved, STDIN_FILENO);
    close(saved);
    scratch_close(&s);
    iv_train_data_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_are_those_of_transformers),
                                       cmocka_unit_test(published_models_give_the_reference_tokens),
                                       cmocka_unit_test(finds_turns_by_prefixes),
                                       cmocka_unit_test(finds_turns_by_generation_tags),
                                       cmocka_unit_test(refuses_templates_that_hide_the_turns),
                                       cmocka_unit_test(passes_tools_variables_and_a_fixed_date),
                                       cmocka_unit_test(refuses_bad_messages),
                                       cmocka_unit_test(leaves_out_turns_of_weight_zero),
                                       cmocka_unit_test(refuses_bad_weights),
                                       cmocka_unit_test(refuses_unknown_members),
                                       cmocka_unit_test(learns_text_and_completions),
                                       cmocka_unit_test(reads_ids_and_masks),
                                       cmocka_unit_test(refuses_bad_ids_and_masks),
                                       cmocka_unit_test(reads_prompts_and_answers),
                                       cmocka_unit_test(reads_the_problems_of_tiny_math),
                                       cmocka_unit_test(refuses_bad_prompts),
                                       cmocka_unit_test(limits_lengths),
                                       cmocka_unit_test(digests_tokens_masks_and_answers),
                                       cmocka_unit_test(opens_files)};
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
