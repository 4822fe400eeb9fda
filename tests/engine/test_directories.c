/* Invalid model directories: one clear error line each, and no leak. And a valid one whose numbers overflow. */
#include "made_model.h"

/* The error line names the directory too, as a process may have several. */
static void expect_open(const char *dir, const char *dtype, iv_status want, const char *text) {
    iv_engine_options o = made_options(dir);
    iv_engine *e = NULL;
    iv_error err;
    o.dtype = dtype;
    expect_error(text, iv_engine_open(&o, &e, &err), &err, want, text);
    expect_error("directory", err.status, &err, want, dir);
    assert_null(e);
}

static void configurations(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        iv_status status;
        const char *text;
    } cases[] = {{"\"model_type\": \"qwen3\"", "\"model_type\": \"qwen9\"", IV_UNSUPPORTED, "qwen9"},
                 {"\"vocab_size\": 512", "\"vocab_size\": 600", IV_FORMAT,
                  "model.embed_tokens.weight: wanted shape [600, 128], found [512, 128]"},
                 {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", IV_FORMAT, "layer"},
                 {"\"num_attention_heads\": 8", "\"num_attention_heads\": 0", IV_FORMAT, "num_attention_heads"},
                 {"\"head_dim\": 32", "\"head_dim\": 64", IV_FORMAT, "wanted shape"},
                 {"{", "[", IV_FORMAT, "config.json"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        made_model m;
        made_open(&m, "qwen3");
        made_config(&m, cases[i].from, cases[i].to);
        expect_open(made_write(&m), "auto", cases[i].status, cases[i].text);
        made_close(&m);
    }
}

static void tensors(void **state) {
    (void)state;
    static const char up[] = "model.layers.1.mlp.up_proj.weight";
    made_model m;
    made_open(&m, "qwen3");
    size_t at = made_find(&m, up);
    const iv_tensor_data good = m.tensors[at];
    m.tensors[at].name = "model.layers.1.mlp.upper_proj.weight";
    expect_open(made_write(&m), "auto", IV_FORMAT,
                "model.layers.1.mlp.up_proj.weight: wanted by qwen3, not in the checkpoint");
    m.tensors[at] = good;
    m.tensors[m.count] = good, m.tensors[m.count].name = "model.layers.1.mlp.extra.weight";
    m.count++;
    expect_open(made_write(&m), "auto", IV_FORMAT, "model.layers.1.mlp.extra.weight: surplus");
    m.tensors[m.count - 1].name = "model.layers.1.self_attn.rotary_emb.cos_cached"; /* which nothing reads */
    iv_engine_options buffered = made_options(made_write(&m));
    iv_engine_close(open_with(&buffered));
    m.count--;
    m.tensors[at].shape[0] = 128, m.tensors[at].shape[1] = 256;
    expect_open(made_write(&m), "auto", IV_FORMAT, "up_proj.weight: wanted shape [256, 128], found [128, 256]");
    m.tensors[at] = good;
    m.tensors[at].ndim = 1, m.tensors[at].shape[0] = 256 * 128;
    expect_open(made_write(&m), "auto", IV_FORMAT, "wanted shape [256, 128], found [32768]");
    m.tensors[at] = good;
    m.tensors[at].dtype = IV_I32, m.tensors[at].data = calloc(256 * 128, 4);
    expect_open(made_write(&m), "auto", IV_UNSUPPORTED, "up_proj.weight: wanted BF16, F16 or F32, found int32");
    free((void *)(uintptr_t)m.tensors[at].data);
    m.tensors[at] = good;
    ((uint16_t *)m.data[at])[12345] = 0x7fc1;
    expect_open(made_write(&m), "auto", IV_FORMAT, "up_proj.weight: element 12345 is not a finite number");
    ((uint16_t *)m.data[at])[12345] = 0xff80; /* and an infinity */
    expect_open(made_write(&m), "auto", IV_FORMAT, "up_proj.weight: element 12345 is not a finite number");
    ((uint16_t *)m.data[at])[12345] = 0;
    size_t norm = made_find(&m, "model.norm.weight");
    ((uint16_t *)m.data[norm])[127] = 0x7f80;
    expect_open(made_write(&m), "float32", IV_FORMAT, "model.norm.weight: element 127 is not");
    ((uint16_t *)m.data[norm])[127] = 0x3f80;
    iv_engine_options o = made_options(made_write(&m)); /* with everything put right it opens */
    iv_engine_close(open_with(&o));
    made_close(&m);
}

/* Published checkpoints repeat the tied embedding as a head; one that differs is an error. */
static void untied_heads_with_tied_embeddings(void **state) {
    (void)state;
    made_model m;
    made_open(&m, "qwen2");
    size_t from = made_find(&m, "model.embed_tokens.weight"), n = made_elements(&m, from);
    m.tensors[m.count] = m.tensors[from];
    m.names[m.count] = strdup("lm_head.weight"), m.data[m.count] = malloc(n * sizeof(uint16_t));
    m.tensors[m.count].name = m.names[m.count], m.tensors[m.count].data = m.data[m.count];
    uint16_t *head = m.data[m.count++];
    memcpy(head, m.data[from], n * sizeof *head);
    iv_engine_options o = made_options(made_write(&m));
    iv_engine_close(open_with(&o));
    head[n - 1] ^= 1;
    expect_open(made_write(&m), "auto", IV_FORMAT,
                "lm_head.weight: wanted the bytes of model.embed_tokens.weight, as tie_word_embeddings is true");
    made_config(&m, "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    o = made_options(made_write(&m));
    iv_engine_close(open_with(&o));
    made_close(&m);
}

static void files(void **state) {
    (void)state;
    made_model m;
    struct stat st;
    made_open(&m, "qwen3");
    made_write(&m);
    assert_int_equal(stat(scratch_path(&m.s, "model.safetensors"), &st), 0);
    for (off_t left = st.st_size - 1; left > 0; left = left / 3) {
        assert_int_equal(truncate(scratch_path(&m.s, "model.safetensors"), left), 0);
        expect_open(m.s.dir, "auto", IV_FORMAT, "model.safetensors");
    }
    unlink(scratch_path(&m.s, "model.safetensors"));
    expect_open(m.s.dir, "auto", IV_NOT_FOUND, "model.safetensors");
    unlink(scratch_path(&m.s, "config.json"));
    expect_open(m.s.dir, "auto", IV_NOT_FOUND, "config.json");
    expect_open("/nonexistent/model", "auto", IV_NOT_FOUND, "/nonexistent/model");
    char file[4200];
    snprintf(file, sizeof file, "%s", source_path("CMakeLists.txt"));
    expect_open(file, "auto", IV_NOT_FOUND, "CMakeLists.txt");
    made_close(&m);
}

static void words_without_weights(void **state) {
    (void)state;
    iv_text_model *t = NULL;
    iv_error err;
    expect_error("missing", iv_text_model_open("/nonexistent/model", &t, &err), &err, IV_NOT_FOUND,
                 "/nonexistent/model");
    char file[4200];
    snprintf(file, sizeof file, "%s", source_path("CMakeLists.txt"));
    expect_error("a file", iv_text_model_open(file, &t, &err), &err, IV_INVALID, "wanted a model directory");
    assert_null(t);
    iv_text_model_close(t);
}

/* An interrupted download leaves dangling links: an optional file that is one is an error, not an absent file. */
static void links_to_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"config.json",           "model.safetensors",      "tokenizer.json",
                                        "tokenizer_config.json", "generation_config.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        made_model m;
        made_open(&m, "qwen3");
        made_write(&m);
        unlink(scratch_path(&m.s, names[i]));
        assert_int_equal(symlink("/nonexistent/blob", scratch_path(&m.s, names[i])), 0);
        char text[100];
        snprintf(text, sizeof text, "%s: cannot open: a symbolic link", names[i]);
        expect_open(m.s.dir, "auto", IV_IO, text);
        made_close(&m);
    }
}

/* A broken template is reported when it is rendered; the model runs without it. */
static void a_list_without_a_default(void **state) {
    (void)state;
    static const char config[] = "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}";
    made_model m;
    iv_text text = {0};
    iv_error err;
    made_open(&m, "qwen3");
    iv_engine_options o = made_options(made_write(&m));
    scratch_write(&m.s, "tokenizer_config.json", config, sizeof config - 1);
    iv_engine *e = open_with(&o);
    expect_error("list", iv_render_chat(iv_engine_text_model(e), "{}", 2, NULL, &text, &err), &err, IV_NOT_FOUND,
                 "tokenizer_config.json: chat_template: no template in the list is named \"default\"");
    iv_engine_close(e);
    made_close(&m);
}

static void without_a_tokenizer_ids_work(void **state) {
    (void)state;
    iv_engine_options o = made_options(INVAR_SOURCE_DIR "/tests/data/hf/qwen3");
    iv_engine *e = open_with(&o);
    static const int32_t prompt[] = {1, 2, 3};
    iv_text text = {0};
    uint64_t id;
    iv_error err;
    iv_request r = ask(e, "2 + 2", 5);
    expect_error("text", iv_engine_submit(e, &r, &id, &err), &err, IV_NOT_FOUND, "no tokenizer.json; give token ids");
    expect_error("ids", iv_detokenize(iv_engine_text_model(e), prompt, 3, false, &text, &err), &err, IV_NOT_FOUND,
                 "no tokenizer.json");
    expect_error("chat", iv_render_chat(iv_engine_text_model(e), "{}", 2, NULL, &text, &err), &err, IV_NOT_FOUND,
                 "no chat template");
    r.text = NULL, r.ids = prompt, r.id_count = 3;
    r.stop = (const char *const[]){"4"}, r.stop_count = 1;
    expect_error("stop", iv_engine_submit(e, &r, &id, &err), &err, IV_INVALID,
                 "stop: wanted a model with a tokenizer.json, found none in");
    r.stop_count = 0, r.constraint = IV_CONSTRAINT_REGEX, r.constraint_text = "a";
    expect_error("regex", iv_engine_submit(e, &r, &id, &err), &err, IV_INVALID,
                 "constraint: wanted a model with a tokenizer.json");
    r.constraint = IV_CONSTRAINT_NONE, r.constraint_text = NULL;
    answer *a = answer_to(e, &r);
    assert_int_equal(a->count, 5);
    assert_string_equal(text_of(a), "");
    iv_engine_close(e);
    answers_free(a, 1);
}

/* A request made from this one's receipt is accepted and ends alike. */
static void receipt_repeats(iv_engine *e, iv_request *r) {
    answer *kept = answer_with_receipt(e, r);
    iv_receipt *receipt = read_receipt(kept->receipt);
    iv_request again;
    iv_receipt_get_request(receipt, &again);
    answer *a = answer_to(e, &again);
    assert_int_equal(a->finish, IV_FINISH_STOP);
    answers_free(a, 1), answers_free(kept, 1);
    iv_receipt_close(receipt);
}

/* Both configurations may name only the base model's end token; a fine-tuned model's turns end with its tokenizer's. */
static void the_tokenizers_end_ends(void **state) {
    (void)state;
    static const char *const words[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    made_model m;
    made_open(&m, "models/tiny-math");
    made_config(&m, "\"eos_token_id\": 688", "\"eos_token_id\": 5");
    for (size_t i = 0; i < 3; i++) {
        char from[4200];
        snprintf(from, sizeof from, "%s/%s", source_path("models/tiny-math"), words[i]);
        assert_int_equal(symlink(from, scratch_path(&m.s, words[i])), 0);
    }
    static const char generation[] = "{\"eos_token_id\": [6, 16777215]}";
    iv_engine_options o = made_options(made_write(&m));
    for (int i = 0; i < 2; i++) { /* without a generation_config.json, and with one */
        if (i) scratch_write(&m.s, "generation_config.json", generation, sizeof generation - 1);
        iv_engine *e = open_with(&o);
        iv_request r = ask(e, "2 + 2 =", 200);
        r.temperature = 0;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->finish, IV_FINISH_STOP);
        assert_int_equal(a->ids[a->count - 1], 688);
        receipt_repeats(e, &r);
        iv_engine_close(e);
        answers_free(a, 1);
    }
    made_close(&m);
}

/* ---- overflow ------------------------------------------------------------------------------------------ */

static void fill_bf16(made_model *m, const char *name, float x) {
    size_t at = made_find(m, name), n = made_elements(m, at);
    for (size_t i = 0; i < n; i++) put_type(m->tensors[at].dtype, m->data[at], i, x);
}

/* Keys overflow for every token but 0, whose embedding is zero: its neighbors' failure must not affect it. */
static void one_overflow_spares_the_others(void **state) {
    (void)state;
    enum { N = 5 };
    static const int32_t zeros[] = {0, 0, 0, 0, 0, 0}, others[] = {0, 0, 7};
    made_model m;
    made_open(&m, "mistral_v03");
    fill_bf16(&m, "model.layers.1.self_attn.k_proj.weight", 3e38f);
    memset(m.data[made_find(&m, "model.embed_tokens.weight")], 0, 128 * 2);
    iv_engine_options o = made_options(made_write(&m));
    o.max_num_batched_tokens = 20;
    iv_engine *e = open_with(&o);
    answer *alone = answers_new(1), *a = answers_new(N);
    iv_request r = ask(e, "", 30);
    static const iv_logit_bias only_zero = {0, 100};
    r.text = NULL, r.ids = zeros, r.id_count = 6, r.ignore_eos = true, r.logit_bias = &only_zero,
    r.logit_bias_count = 1;
    submit(e, &r, alone);
    run_all(e, alone, 1);
    assert_int_equal(alone->count, 30);
    for (size_t i = 0; i < N; i++) {
        r.ids = i % 2 ? others : zeros, r.id_count = i % 2 ? 3 : 6;
        submit(e, &r, &a[i]);
    }
    run_all(e, a, N);
    for (size_t i = 0; i < N; i++) {
        if (i % 2 == 0)
            assert_same_answer("next to one that overflows", alone, &a[i]);
        else {
            assert_int_equal(a[i].finish, IV_FINISH_ERROR);
            assert_int_equal(a[i].count, 0);
            assert_non_null(strstr(a[i].error, "layer 1: a key or value"));
            assert_non_null(strstr(a[i].error, "not finite"));
            assert_int_equal(a[i].error_status, IV_NOT_FINITE);
        }
    }
    answer *after =
        answer_to(e, (r.ids = zeros, r.id_count = 6, &r)); /* pages that saw the failure are as good as new */
    assert_same_answer("after one that overflowed", alone, after);
    iv_engine_close(e);
    made_close(&m);
    answers_free(alone, 1), answers_free(a, N), answers_free(after, 1);
}

/* Finite weights whose logits are not finite: an error of the request, with every kind of sampling. */
static void overflowing_logits_end_a_request(void **state) {
    (void)state;
    static const int32_t prompt[] = {1, 2, 3};
    made_model m;
    made_open(&m, "mistral_v03");
    fill_bf16(&m, "lm_head.weight", 3e38f);
    iv_engine_options o = made_options(made_write(&m));
    iv_engine *e = open_with(&o);
    for (int kind = 0; kind < 5; kind++) {
        iv_request r = ask(e, "", 5);
        r.text = NULL, r.ids = prompt, r.id_count = 3, r.temperature = kind ? 1.0f : 0.0f;
        r.top_k = kind == 2 ? 5 : 0, r.top_p = kind == 3 ? 0.5f : 1.0f, r.min_p = kind == 4 ? 0.1f : 0.0f;
        answer *a = answer_to(e, &r);
        assert_int_equal(a->finish, IV_FINISH_ERROR);
        assert_int_equal(a->count, 0);
        assert_string_equal(a->error, "logits of token 3 of the sequence are not finite");
        assert_int_equal(a->error_status, IV_NOT_FINITE);
        answers_free(a, 1);
    }
    iv_engine_close(e);
    made_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(configurations),
                                       cmocka_unit_test(tensors),
                                       cmocka_unit_test(untied_heads_with_tied_embeddings),
                                       cmocka_unit_test(files),
                                       cmocka_unit_test(words_without_weights),
                                       cmocka_unit_test(links_to_nothing),
                                       cmocka_unit_test(a_list_without_a_default),
                                       cmocka_unit_test(without_a_tokenizer_ids_work),
                                       cmocka_unit_test(the_tokenizers_end_ends),
                                       cmocka_unit_test(one_overflow_spares_the_others),
                                       cmocka_unit_test(overflowing_logits_end_a_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
