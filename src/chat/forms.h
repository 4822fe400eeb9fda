/* forms.h: how models write reasoning and tool calls: a row of marks for each form. Texts are divided by these rows
 * (chat_text.h), answers forced by them (src/grammar), and templates recognized by them (src/engine). */
#ifndef IV_CHAT_FORMS_H
#define IV_CHAT_FORMS_H

#include "base/status.h"
#include "invar.h"

#include <stdbool.h>

/* ---- marks -------------------------------------------------------------------------------------------- */

/* Marks that some vocabularies have as special tokens, which texts leave out unless they are shown. */
typedef enum iv_special {
    IV_SPECIAL_TOOL_CALLS,
    IV_SPECIAL_ARGS,
    IV_SPECIAL_CALL_ID,
    IV_SPECIAL_START, /* Harmony's, to CONSTRAIN */
    IV_SPECIAL_CHANNEL,
    IV_SPECIAL_MESSAGE,
    IV_SPECIAL_END,
    IV_SPECIAL_CONSTRAIN,
    IV_SPECIALS_NAMED, /* the others are found by their text alone */
    IV_SPECIALS = 45
} iv_special;

/* "[TOOL_CALLS]" and so on. Static string. */
const char *iv_special_name(iv_special special);
/* -1: no mark has this text. */
int iv_special_find(const char *text);

/* ---- reasoning ---------------------------------------------------------------------------------------- */

typedef struct iv_reasoning_marks {
    const char *name;                /* as of iv_reasoning_form_name */
    const char *others;              /* other parsers' names that mean it, between '|' */
    const char *begin[2], *end[2];   /* spellings; the second may be NULL. Harmony: none */
    const char *answer, *answer_end; /* may be around the content; NULL: nothing */
} iv_reasoning_marks;

const iv_reasoning_marks *iv_reasoning_marks_of(iv_reasoning_form form);

/* ---- calls -------------------------------------------------------------------------------------------- */

typedef enum iv_tool_kind {
    IV_TOOLS_JSON,     /* JSON between `open` and `close` */
    IV_TOOLS_BARE,     /* Llama's JSON, which may be the whole answer, or follow `open` */
    IV_TOOLS_LIST,     /* a list of JSON objects after `open`, then perhaps `close`; Mistral's other forms, too */
    IV_TOOLS_TAGS,     /* marks around names and values, which are text */
    IV_TOOLS_MARKED,   /* marks around names and JSON */
    IV_TOOLS_PYTHON,   /* calls of functions */
    IV_TOOLS_CHANNELS, /* Harmony's */
    IV_TOOLS_NONE
} iv_tool_kind;

/* White space between marks is not in the rows. NULL: not written. */
typedef struct iv_tool_marks {
    const char *name, *others;
    iv_tool_kind kind;
    const char *open, *open_too, *close; /* around all calls of a block; open_too: another spelling of `open` */
    /* TAGS: FUNCTION NAME NAMED, for each argument KEY key KEYED VALUE_OPEN value VALUE_END, then FUNCTION_END.
     * MARKED: FUNCTION NAME NAMED {...} FUNCTION_END. */
    const char *function, *named, *key, *keyed, *value, *value_end, *function_end;
    bool value_lines; /* TAGS: values are on lines of their own */
    bool several;     /* TAGS: a block holds several calls */
    bool lines;       /* PYTHON: one call to a line, else a list of them */
} iv_tool_marks;

const iv_tool_marks *iv_tool_marks_of(iv_tool_form form);

/* A form by its name or another parser's; false: none has it. */
bool iv_reasoning_form_named(const char *name, iv_reasoning_form *form);
bool iv_tool_form_named(const char *name, iv_tool_form *form);

static inline iv_reasoning_form iv_reasoning_form_in(iv_reasoning reasoning) {
    return (iv_reasoning_form)((unsigned)reasoning / IV_REASONING_FORM_STEP);
}

static inline iv_reasoning iv_reasoning_without_form(iv_reasoning reasoning) {
    return (iv_reasoning)((unsigned)reasoning % IV_REASONING_FORM_STEP);
}

static inline iv_reasoning iv_reasoning_with_form(iv_reasoning_form form, iv_reasoning plain) {
    unsigned step = plain == IV_REASONING_NONE ? 0 : (unsigned)form * IV_REASONING_FORM_STEP;
    return (iv_reasoning)(step + (unsigned)plain);
}

/* A value of a request or a receipt: NONE, or OPEN or OPTIONAL in some form. */
static inline bool iv_reasoning_is_valid(iv_reasoning reasoning) {
    unsigned plain = (unsigned)iv_reasoning_without_form(reasoning), form = (unsigned)iv_reasoning_form_in(reasoning);
    return plain <= IV_REASONING_OPTIONAL && form < IV_REASONING_FORM_NONE && (plain || !form);
}

#endif
