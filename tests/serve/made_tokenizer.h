/* made_tokenizer.h: small tokenizers for tests of the APIs. */
#ifndef IV_TESTS_MADE_TOKENIZER_H
#define IV_TESTS_MADE_TOKENIZER_H

#include "invar.h"
#include "support.h"
#include "format/scratch.h"

/* An added token, and its piece in a processor. */
static inline void word_json(iv_buf *added, iv_buf *ids, int id, const char *text) {
    const char *comma = added->len ? "," : "";
    assert_true(iv_buf_printf(added,
                              "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                              "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                              comma, id, text));
    assert_true(
        iv_buf_printf(ids, "%s\"%s\":{\"id\":\"%s\",\"ids\":[%d],\"tokens\":[\"%s\"]}", comma, text, text, id, text));
}

/* `around`: tokens before and after every text (the latter may be NULL), with ids 0 and 1; `rest`: other members. */
static inline iv_text_model *made_tokenizer(const char *const around[2], const char *rest) {
    iv_buf added = {0}, ids = {0}, json = {0};
    scratch s;
    iv_error err;
    iv_text_model *text_model;
    word_json(&added, &ids, 0, around[0]);
    if (around[1]) word_json(&added, &ids, 1, around[1]);
    assert_true(iv_buf_printf(&json,
                              "{\"added_tokens\":[%s],\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                              "{\"SpecialToken\":{\"id\":\"%s\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
                              "\"type_id\":0}}",
                              added.data, around[0]));
    if (around[1]) assert_true(iv_buf_printf(&json, ",{\"SpecialToken\":{\"id\":\"%s\",\"type_id\":0}}", around[1]));
    assert_true(iv_buf_printf(&json, "],\"pair\":[],\"special_tokens\":{%s}},%s}", ids.data, rest));
    scratch_open(&s);
    scratch_write(&s, "tokenizer.json", json.data, json.len);
    ASSERT_OK(iv_text_model_open(s.dir, &text_model, &err), &err);
    scratch_close(&s);
    iv_buf_free(&added), iv_buf_free(&ids), iv_buf_free(&json);
    return text_model;
}

/* Like Llama 2: "<s>" before every text, and a space that the start of a text loses. */
static inline iv_text_model *stripping_tokenizer(void) {
    static const char *const around[2] = {"<s>", NULL};
    return made_tokenizer(around, "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},"
                                  "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                                  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
                                  "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
                                  "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"_\":1,\"a\":2,\"b\":3,\"_a\":4},"
                                  "\"merges\":[\"_ a\"]}");
}

/* "<s>" before every text and "</s>" after it. */
static inline iv_text_model *wrapping_tokenizer(void) {
    static const char *const around[2] = {"<s>", "</s>"};
    return made_tokenizer(around, "\"decoder\":{\"type\":\"Fuse\"},"
                                  "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"</s>\":1,\"a\":2,\"b\":3},"
                                  "\"merges\":[]}");
}

#endif
