/* fuzz_train_data.c: any file of training data is read or refused with a message, and what is read is in range. Input:
 * a byte of options, then the file. */
#include "text/jinja/template.h"
#include "train/data/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ADDED "\"single_word\": false, \"lstrip\": false, \"rstrip\": "
static const char tokenizer_text[] =
    "{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"vocab\": {\"<unk>\": 0, \"a\": "
    "1, "
    "\"b\": 2, \"ab\": 3, \" \": 4}, \"merges\": [\"a b\"]}, \"normalizer\": {\"type\": \"NFC\"}, \"added_tokens\": ["
    "{\"id\": 5, \"content\": \"<s>\", \"special\": true, \"normalized\": false, " ADDED "true},"
    "{\"id\": 6, \"content\": \"aa\", \"special\": false, \"normalized\": true, " ADDED "false}]}";
static const char tagged[] =
    "{{ tools or '' }}{% for m in messages %}<s>{% generation %}{{ m.content }}{% endgeneration %}b{% endfor %}";
static const char plain[] = "{% for m in messages %}<s>{{ m.role }}{{ m.content }}{% endfor %}"
                            "{% if add_generation_prompt %}<s>assistant{% endif %}";

static iv_text_model *open_model(const char *jinja) {
    iv_text_model *t = calloc(1, sizeof *t);
    char dir[] = "/tmp/invar-fuzz-XXXXXX", path[64];
    iv_error err;
    IV_ASSERT(t && mkdtemp(dir));
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    FILE *f = fopen(path, "w");
    IV_ASSERT(f && fputs(jinja, f) >= 0 && fclose(f) == 0);
    if (iv_tokenizer_parse("tokenizer", tokenizer_text, sizeof tokenizer_text - 1, &t->tokenizer, &err) != IV_OK) {
        fprintf(stderr, "%s\n", err.message), abort();
    }
    IV_ASSERT(iv_chat_template_open(dir, &t->chat, &err) == IV_OK);
    t->eos_id = 5;
    unlink(path), rmdir(dir);
    return t;
}

static void check_example(const iv_train_data *d, size_t i, size_t vocab, const iv_train_data_options *o) {
    iv_train_example e = iv_train_data_example(d, i);
    bool learns = false;
    IV_ASSERT(e.count >= 1 && e.line_number >= 1 && e.line_bytes >= 2 && e.mask[0] == 0);
    IV_ASSERT(!o->max_length || e.count <= o->max_length);
    for (size_t t = 0; t < e.count; t++) {
        IV_ASSERT(e.ids[t] >= 0 && (size_t)e.ids[t] < vocab);
        IV_ASSERT(isfinite(e.mask[t]) && e.mask[t] >= 0 && !(t < e.prompt_count && e.mask[t] > 0));
        learns |= e.mask[t] > 0;
    }
    IV_ASSERT(learns == (o->kind == IV_TRAIN_SFT));
    IV_ASSERT(!e.answer || e.answer[e.answer_bytes] == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static iv_text_model *models[2];
    if (!models[0]) models[0] = open_model(tagged), models[1] = open_model(plain);
    if (size == 0) return 0;
    unsigned bits = *data;
    iv_train_data_options o = {.path = "fuzz", .kind = bits & 1, .max_length = bits & 2 ? 6 : 0};
    o.longer = bits & 4 ? IV_TRAIN_LONGER_DROP : bits & 1 ? IV_TRAIN_LONGER_ERROR : IV_TRAIN_LONGER_TRUNCATE;
    o.need_answer = bits & 16;
    iv_train_data *d = NULL;
    iv_error err = {0};
    iv_status status = iv_train_data_parse(&o, models[bits >> 3 & 1], data + 1, size - 1, &d, &err);
    if (status != IV_OK) {
        IV_ASSERT(err.status == status && err.message[0] && !d);
        return 0;
    }
    IV_ASSERT(iv_train_data_count(d) > 0);
    for (size_t i = 0; i < iv_train_data_count(d); i++) check_example(d, i, 7, &o);
    iv_train_data_close(d);
    return 0;
}
