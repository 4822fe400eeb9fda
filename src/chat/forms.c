/* forms.c: the rows. */
#include "chat/forms.h"

#include <string.h>

/* DeepSeek's marks have full-width bars and a low line in the middle of a row. */
#define DEEPSEEK(words) "<\xef\xbd\x9c" words "\xef\xbd\x9c>"
#define LOW "\xe2\x96\x81"

const char *iv_special_name(iv_special special) {
    static const char *const names[] = {
        /* in the order of iv_special */
        "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>",
        /* reasoning */
        "<think>", "</think>", "<seed:think>", "</seed:think>", "[THINK]", "[/THINK]", "<answer>", "</answer>",
        "<response>", "</response>",
        /* calls */
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<seed:tool_call>",
        "</seed:tool_call>", "<minimax:tool_call>", "</minimax:tool_call>", "<|tool_call|>", "<tool_calls>",
        "</tool_calls>", DEEPSEEK("tool" LOW "calls" LOW "begin"), DEEPSEEK("tool" LOW "calls" LOW "end"),
        DEEPSEEK("tool" LOW "call" LOW "begin"), DEEPSEEK("tool" LOW "call" LOW "end"), DEEPSEEK("tool" LOW "sep"),
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|python_start|>", "<|python_end|>", "<function_calls>",
        "</function_calls>"};
    _Static_assert(sizeof names / sizeof *names == IV_SPECIALS, "a name for each");
    return names[special];
}

int iv_special_find(const char *text) {
    for (int i = 0; i < IV_SPECIALS; i++)
        if (strcmp(text, iv_special_name((iv_special)i)) == 0) return i;
    return -1;
}

/* ---- reasoning ---------------------------------------------------------------------------------------- */

#define THINK .begin = {"<think>"}, .end = {"</think>"}

static const iv_reasoning_marks reasonings[] = {
    [IV_REASONING_FORM_THINK] = {.name = "qwen3",
                                 .others = "|deepseek_r1|deepseek_v3|glm45|kimi_k2|minimax_m2|olmo3|",
                                 THINK},
    [IV_REASONING_FORM_HARMONY] = {.name = "openai_gptoss", .others = "||"},
    [IV_REASONING_FORM_SEED_OSS] = {.name = "seed_oss",
                                    .others = "||",
                                    .begin = {"<seed:think>"},
                                    .end = {"</seed:think>"}},
    [IV_REASONING_FORM_GRANITE] = {.name = "granite",
                                   .others = "||",
                                   .begin = {"Here is my thought process:", "Here's my thought process:"},
                                   .end = {"Here is my response:", "Here's my response:"}},
    [IV_REASONING_FORM_MISTRAL] = {.name = "mistral", .others = "||", .begin = {"[THINK]"}, .end = {"[/THINK]"}},
    [IV_REASONING_FORM_HUNYUAN] =
        {.name = "hunyuan_a13b", .others = "||", THINK, .answer = "<answer>", .answer_end = "</answer>"},
    [IV_REASONING_FORM_ERNIE45] =
        {.name = "ernie45", .others = "||", THINK, .answer = "<response>", .answer_end = "</response>"},
    [IV_REASONING_FORM_NONE] = {.name = "none", .others = "||"},
};

const iv_reasoning_marks *iv_reasoning_marks_of(iv_reasoning_form form) {
    return &reasonings[(unsigned)form < IV_REASONING_FORM_NONE ? form : IV_REASONING_FORM_NONE];
}

const char *iv_reasoning_form_name(iv_reasoning_form form) { return iv_reasoning_marks_of(form)->name; }

/* ---- calls -------------------------------------------------------------------------------------------- */

#define CODER_TAGS                                                                                     \
    .kind = IV_TOOLS_TAGS, .function = "<function=", .named = ">", .key = "<parameter=", .keyed = ">", \
    .value_end = "</parameter>", .function_end = "</function>"

static const iv_tool_marks calls[] = {
    [IV_TOOL_FORM_HERMES] = {.name = "hermes",
                             .others = "|ernie45|granite4|",
                             .kind = IV_TOOLS_JSON,
                             .open = "<tool_call>",
                             .close = "</tool_call>"},
    [IV_TOOL_FORM_LLAMA3_JSON] = {.name = "llama3_json",
                                  .others = "|llama4_json|",
                                  .kind = IV_TOOLS_BARE,
                                  .open = "<|python_tag|>"},
    [IV_TOOL_FORM_MISTRAL] = {.name = "mistral", .others = "||", .kind = IV_TOOLS_LIST, .open = "[TOOL_CALLS]"},
    [IV_TOOL_FORM_MISTRAL_NAME] = {.name = "mistral_name", .kind = IV_TOOLS_LIST, .open = "[TOOL_CALLS]"},
    [IV_TOOL_FORM_MISTRAL_ARGS] = {.name = "mistral_args", .kind = IV_TOOLS_LIST, .open = "[TOOL_CALLS]"},
    [IV_TOOL_FORM_MISTRAL_CALL_ID] = {.name = "mistral_call_id", .kind = IV_TOOLS_LIST, .open = "[TOOL_CALLS]"},
    [IV_TOOL_FORM_QWEN3_CODER] = {.name = "qwen3_coder",
                                  .others = "|qwen3_xml|",
                                  .open = "<tool_call>",
                                  .close = "</tool_call>",
                                  .value_lines = true,
                                  CODER_TAGS},
    [IV_TOOL_FORM_HARMONY] = {.name = "openai", .others = "||", .kind = IV_TOOLS_CHANNELS},
    [IV_TOOL_FORM_GLM] = {.name = "glm45",
                          .others = "|glm47|",
                          .kind = IV_TOOLS_TAGS,
                          .open = "<tool_call>",
                          .close = "</tool_call>",
                          .function = "",
                          .named = "\n",
                          .key = "<arg_key>",
                          .keyed = "</arg_key>",
                          .value = "<arg_value>",
                          .value_end = "</arg_value>"},
    [IV_TOOL_FORM_SEED_OSS] =
        {.name = "seed_oss", .others = "||", .open = "<seed:tool_call>", .close = "</seed:tool_call>", CODER_TAGS},
    [IV_TOOL_FORM_MINIMAX_M2] = {.name = "minimax_m2",
                                 .others = "||",
                                 .kind = IV_TOOLS_TAGS,
                                 .open = "<minimax:tool_call>",
                                 .close = "</minimax:tool_call>",
                                 .function = "<invoke name=\"",
                                 .named = "\">",
                                 .key = "<parameter name=\"",
                                 .keyed = "\">",
                                 .value_end = "</parameter>",
                                 .function_end = "</invoke>",
                                 .several = true},
    [IV_TOOL_FORM_GRANITE] =
        {.name = "granite", .others = "||", .kind = IV_TOOLS_LIST, .open = "<|tool_call|>", .open_too = "<tool_call>"},
    [IV_TOOL_FORM_PHI4_MINI] = {.name = "phi4_mini_json",
                                .others = "||",
                                .kind = IV_TOOLS_LIST,
                                .open = "functools",
                                .open_too = "<|tool_call|>"},
    [IV_TOOL_FORM_HUNYUAN] = {.name = "hunyuan_a13b",
                              .others = "||",
                              .kind = IV_TOOLS_LIST,
                              .open = "<tool_calls>",
                              .close = "</tool_calls>"},
    [IV_TOOL_FORM_DEEPSEEK_V3] = {.name = "deepseek_v3",
                                  .others = "||",
                                  .kind = IV_TOOLS_MARKED,
                                  .open = DEEPSEEK("tool" LOW "calls" LOW "begin"),
                                  .close = DEEPSEEK("tool" LOW "calls" LOW "end"),
                                  .function =
                                      DEEPSEEK("tool" LOW "call" LOW "begin") "function" DEEPSEEK("tool" LOW "sep"),
                                  .named = "\n```json\n",
                                  .value_end = "\n```",
                                  .function_end = DEEPSEEK("tool" LOW "call" LOW "end")},
    [IV_TOOL_FORM_DEEPSEEK_V31] = {.name = "deepseek_v31",
                                   .others = "||",
                                   .kind = IV_TOOLS_MARKED,
                                   .open = DEEPSEEK("tool" LOW "calls" LOW "begin"),
                                   .close = DEEPSEEK("tool" LOW "calls" LOW "end"),
                                   .function = DEEPSEEK("tool" LOW "call" LOW "begin"),
                                   .named = DEEPSEEK("tool" LOW "sep"),
                                   .function_end = DEEPSEEK("tool" LOW "call" LOW "end")},
    [IV_TOOL_FORM_KIMI_K2] = {.name = "kimi_k2",
                              .others = "||",
                              .kind = IV_TOOLS_MARKED,
                              .open = "<|tool_calls_section_begin|>",
                              .close = "<|tool_calls_section_end|>",
                              .function = "<|tool_call_begin|>",
                              .named = "<|tool_call_argument_begin|>",
                              .function_end = "<|tool_call_end|>"},
    [IV_TOOL_FORM_PYTHONIC] = {.name = "pythonic", .others = "||", .kind = IV_TOOLS_PYTHON},
    [IV_TOOL_FORM_LLAMA4_PYTHONIC] = {.name = "llama4_pythonic",
                                      .others = "||",
                                      .kind = IV_TOOLS_PYTHON,
                                      .open = "<|python_start|>",
                                      .close = "<|python_end|>"},
    [IV_TOOL_FORM_OLMO3] = {.name = "olmo3",
                            .others = "||",
                            .kind = IV_TOOLS_PYTHON,
                            .open = "<function_calls>",
                            .close = "</function_calls>",
                            .lines = true},
    [IV_TOOL_FORM_NONE] = {.name = "none", .others = "||", .kind = IV_TOOLS_NONE},
};

const iv_tool_marks *iv_tool_marks_of(iv_tool_form form) {
    return &calls[(unsigned)form < IV_TOOL_FORM_NONE ? form : IV_TOOL_FORM_NONE];
}

const char *iv_tool_form_name(iv_tool_form form) { return iv_tool_marks_of(form)->name; }

/* ---- names -------------------------------------------------------------------------------------------- */

static bool has_name(const char *name, const char *own, const char *others) {
    size_t n = strlen(name);
    if (strcmp(name, own) == 0) return true;
    for (const char *at = others; at && n && (at = strstr(at, name)) != NULL; at++)
        if (at[-1] == '|' && at[n] == '|') return true;
    return false;
}

bool iv_reasoning_form_named(const char *name, iv_reasoning_form *form) {
    for (int i = 0; i <= IV_REASONING_FORM_NONE; i++)
        if (has_name(name, reasonings[i].name, reasonings[i].others)) {
            *form = (iv_reasoning_form)i;
            return true;
        }
    return false;
}

bool iv_tool_form_named(const char *name, iv_tool_form *form) {
    for (int i = 0; i <= IV_TOOL_FORM_NONE; i++)
        if (has_name(name, calls[i].name, calls[i].others)) {
            *form = (iv_tool_form)i;
            return true;
        }
    return false;
}
