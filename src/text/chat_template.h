/* chat_template.h: the chat template of a model directory, with the model's special tokens as variables.
 *
 * docs/formats/chat_template.md says where templates are found and what they may contain. */
#ifndef IV_TEXT_CHAT_TEMPLATE_H
#define IV_TEXT_CHAT_TEMPLATE_H

#include "base/buf.h"
#include "base/status.h"

#include <jansson.h>

typedef struct iv_chat_template iv_chat_template; /* immutable; may be rendered by several threads at once */

/* Reads dir/chat_template.jinja, else "chat_template" of dir/tokenizer_config.json: one template, or a list of
 * {"name", "template"} with a "default" and perhaps a "tool_use". IV_NOT_FOUND when the model has none; IV_FORMAT when
 * a field has the wrong type. A template that does not parse fails when it is to be rendered. The caller closes *out.
 */
iv_status iv_chat_template_open(const char *dir, iv_chat_template **out, iv_error *err);

/* Renders the conversation into out, replacing its content. `variables` is an object with "messages" and what
 * else the template takes; its members win over the special tokens (bos_token, ...). As in Hugging Face's
 * apply_chat_template, tools and documents are none and add_generation_prompt is false where they are not
 * given. Tools that are not empty choose the "tool_use" template if there is one. strftime_now and errors: as
 * in iv_template_render. */
iv_status iv_chat_template_render(const iv_chat_template *t, const json_t *variables, const char *strftime_now,
                                  iv_buf *out, iv_error *err);

/* SHA-256 over the templates and the special tokens: equal digests render equal texts. */
void iv_chat_template_digest(const iv_chat_template *t, uint8_t out[32]);

void iv_chat_template_close(iv_chat_template *t); /* NULL is allowed */

/* Adds "bos_token", "eos_token" and their like to `into`, each as a string: those of tokenizer_config.json, which is
 * `config` (NULL: there is none), and over them, where that is of the older form without added_tokens_decoder, those of
 * special_tokens_map.json. */
iv_status iv_special_tokens_read(const char *dir, const json_t *config, json_t *into, iv_error *err);

#endif
