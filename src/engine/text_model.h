/* text_model.h: a model's tokenizer and chat template, either of which may be absent. */
#ifndef IV_ENGINE_TEXT_MODEL_H
#define IV_ENGINE_TEXT_MODEL_H

#include "engine/constraint.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

struct iv_text_model {
    char *model;
    iv_tokenizer *tokenizer;    /* NULL: the directory has no tokenizer.json */
    iv_chat_template *chat;     /* NULL: the model has no chat template, */
    iv_error no_chat;           /* and this is the error of opening it */
    int32_t eos_id;             /* eos_token (iv_special_tokens_read); -1: none, or not in the vocabulary */
    iv_constraints constraints; /* of iv_text_model_compile */
};

#endif
