/* text_model.h: a model's words: its tokenizer and chat template, each perhaps absent. Implements iv_text_model. */
#ifndef IV_ENGINE_TEXT_MODEL_H
#define IV_ENGINE_TEXT_MODEL_H

#include "text/chat_template.h"
#include "text/tokenizer.h"

struct iv_text_model {
    char *model;
    iv_tokenizer *tokenizer; /* NULL: the directory has no tokenizer.json */
    iv_chat_template *chat;  /* NULL: the model has no chat template, ... */
    iv_error no_chat;        /* ... because of this */
    int32_t eos_id;          /* the eos_token of text/special_tokens.h; -1: none, or none that the vocabulary has */
};

/* IV_NOT_FOUND, saying so, when the model has no tokenizer. */
iv_status iv_text_model_need_tokenizer(const iv_text_model *t, iv_error *err);

#endif
