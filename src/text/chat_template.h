/* chat_template.h: the chat template of a model directory, with the model's special tokens as variables.
 *
 * docs/formats/chat_template.md lists the locations and the supported language. */
#ifndef IV_TEXT_CHAT_TEMPLATE_H
#define IV_TEXT_CHAT_TEMPLATE_H

#include "base/buf.h"
#include "base/status.h"
#include "text/chat_fit.h"
#include "text/span.h"

#include <jansson.h>

typedef struct iv_chat_template iv_chat_template; /* immutable; may be rendered by several threads at once */

/* Reads dir/chat_template.jinja, otherwise "chat_template" of dir/tokenizer_config.json: one template, or a list of
 * {"name", "template"} with a "default" and optionally a "tool_use". IV_NOT_FOUND without a template; IV_FORMAT for a
 * field of the wrong type. A template that does not parse fails when it is rendered. The caller closes *out. */
iv_status iv_chat_template_open(const char *dir, iv_chat_template **out, iv_error *err);

/* Renders the conversation into out, replacing its content. `variables` is an object with "messages" and the other
 * variables of the template; its members override the special tokens (bos_token, ...). As in Hugging Face's
 * apply_chat_template, tools and documents default to none and add_generation_prompt to false. Non-empty tools select
 * the "tool_use" template if there is one. strftime_now and errors: see iv_template_render. */
iv_status iv_chat_template_render(const iv_chat_template *t, const json_t *variables, const char *strftime_now,
                                  iv_buf *out, iv_error *err);

/* The same with the spans of the template's generation blocks (iv_template_render_spans), or NULL. *tagged: whether the
 * template that renders these variables has such blocks, or is known so that marks could be added
 * (training_template.h); with spans NULL only the former. */
iv_status iv_chat_template_render_spans(const iv_chat_template *t, const json_t *variables, const char *strftime_now,
                                        iv_buf *out, iv_text_spans *spans, bool *tagged, iv_error *err);

/* The template that renders these variables; NULL if it does not parse. */
const iv_template *iv_chat_template_chosen(const iv_chat_template *t, const json_t *variables);
/* Changes "messages" of the variables, as read, for that template (iv_chat_fit). */
iv_status iv_chat_template_fit(const iv_chat_template *t, json_t *variables, const char *name, iv_error *err);

/* SHA-256 over the templates and the special tokens: equal digests render equal texts. */
void iv_chat_template_digest(const iv_chat_template *t, uint8_t out[32]);

void iv_chat_template_close(iv_chat_template *t); /* NULL is allowed */

/* Adds "bos_token", "eos_token" and the other special tokens to `into`, as strings: those of tokenizer_config.json,
 * parsed as `config` (NULL: none). If `config` has the older form without added_tokens_decoder, special_tokens_map.json
 * overrides them. */
iv_status iv_special_tokens_read(const char *dir, const json_t *config, json_t *into, iv_error *err);

#endif
