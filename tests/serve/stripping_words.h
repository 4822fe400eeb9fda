/* stripping_words.h: words as Llama 2 has them: "<s>" before every text, and a space that the beginning of a text
 * loses. */
#ifndef IV_TESTS_STRIPPING_WORDS_H
#define IV_TESTS_STRIPPING_WORDS_H

#include "support.h"
#include "format/scratch.h"

static inline iv_textual *stripping_words(void) {
#define ADDED(id, text)                                                                \
    "{\"id\":" #id ",\"content\":\"" text "\",\"single_word\":false,\"lstrip\":false," \
    "\"rstrip\":false,\"normalized\":false,\"special\":true}"
    static const char json[] = "{\"added_tokens\":[" ADDED(
        0,
        "<s>") "],\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},"
               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
               "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":"
               "{\"id\":\"<s>\",\"ids\":[0],\"tokens\":[\"<s>\"]}}},"
               "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},"
               "\"content\":\" \"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
               "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"_\":1,\"a\":2,\"b\":3,\"_a\":4},"
               "\"merges\":[\"_ a\"]}}";
    scratch s;
    iv_error err;
    iv_textual *words;
    scratch_open(&s);
    scratch_write(&s, "tokenizer.json", json, strlen(json));
    ASSERT_OK(iv_textual_open(s.dir, &words, &err), &err);
    scratch_close(&s);
    return words;
}

#endif
