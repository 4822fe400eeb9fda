/* template.h: Jinja2 templates, as chat templates use them.
 *
 * The dialect is that of the Hugging Face chat-template environment: an immutable sandbox with trim_blocks
 * and lstrip_blocks on, autoescape off, keep_trailing_newline off, loop controls, `{% generation %}` as a
 * transparent block, and the globals raise_exception and strftime_now. Rendering follows Python's values:
 * truth, equality, str() and repr() are Python's. docs/formats/chat_template.md lists the supported subset.
 *
 * A template is untrusted: every loop, recursion and growth has one of the maxima below. */
#ifndef IV_TEXT_JINJA_TEMPLATE_H
#define IV_TEXT_JINJA_TEMPLATE_H

#include "base/buf.h"
#include "base/status.h"
#include "text/span.h"
#include <jansson.h>

#define IVJ_MAX_SOURCE_BYTES ((size_t)1 << 20)   /* template text */
#define IVJ_MAX_TREE_BYTES ((size_t)128 << 20)   /* a parsed template in memory */
#define IVJ_MAX_NAMES 4096                       /* different names in a template */
#define IVJ_MAX_NESTING 100                      /* statements and expressions inside one another */
#define IVJ_MAX_EVAL_DEPTH 400                   /* expressions, statements and macro calls being evaluated */
#define IVJ_MAX_VALUE_DEPTH 200                  /* lists and objects inside one another */
#define IVJ_MAX_STEPS ((size_t)10 * 1000 * 1000) /* nodes evaluated, plus a charge for bulk work */
#define IVJ_MAX_OUTPUT_BYTES ((size_t)16 << 20)  /* rendered text */
#define IVJ_MAX_WRITTEN_BYTES ((size_t)64 << 20) /* the same, with text captured by macros and set blocks */
#define IVJ_MAX_LIVE_BYTES ((size_t)256 << 20)   /* values made while rendering */
#define IVJ_MAX_RANGE 100000                     /* items of range(), as in Jinja2's sandbox */

typedef struct iv_template iv_template; /* parsed; immutable, may be rendered by several threads at once */

/* `{% generation %}` is an unknown tag in plain Jinja2, a transparent block in Hugging Face's environment. */
typedef enum iv_jinja_dialect { IV_JINJA_PLAIN, IV_JINJA_CHAT } iv_jinja_dialect;

/* Parses n bytes of UTF-8. `name` (copied) heads every error of this template, followed by the line.
 * IV_TEMPLATE for a syntax error, IV_LIMIT past a maximum above. The caller closes *out. */
iv_status iv_template_parse(const char *name, const char *source, size_t n, iv_jinja_dialect dialect, iv_template **out,
                            iv_error *err);

/* Renders into out, replacing its content. `variables` is a JSON object with the template's variables; it is only read.
 * strftime_now is the result of strftime_now(...) for any format; NULL: the local clock. An error raised by the
 * template, or by an invalid operation in it, is IV_TEMPLATE with the template's line; after a failure the content of
 * out is unspecified. */
iv_status iv_template_render(const iv_template *t, const json_t *variables, const char *strftime_now, iv_buf *out,
                             iv_error *err);

/* The same. spans (its content is replaced; the caller frees spans->at, on failure too) becomes the text of each
 * `{% generation %}` block that was rendered, in order of their ends, as in transformers' return_assistant_tokens_mask;
 * empty blocks are left out. A block inside of a macro, call, filter or set has a span if its text is written where it
 * is rendered, otherwise it is an IV_TEMPLATE error: its place in the output is unknown. */
iv_status iv_template_render_spans(const iv_template *t, const json_t *variables, const char *strftime_now, iv_buf *out,
                                   iv_text_spans *spans, iv_error *err);
bool iv_template_has_generation(const iv_template *t); /* has `{% generation %}` anywhere */

/* Has a loop over x.content or x['content']: messages' content may be a list of parts. As in vLLM's detection, a loop
 * over a name that was set to the content does not count. */
bool iv_template_reads_parts(const iv_template *t);

/* Has `.word`, 'word' or "word" in its source: it may read such a member, or compare something with the word. */
bool iv_template_names(const iv_template *t, const char *word);

/* Has this text in its source. */
bool iv_template_contains(const iv_template *t, const char *text);

void iv_template_close(iv_template *t); /* NULL is allowed */

#endif
