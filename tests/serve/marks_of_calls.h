/* marks_of_calls.h: pieces of the newer forms of calls, of which random answers are made. */
#ifndef IV_TESTS_SERVE_MARKS_OF_CALLS_H
#define IV_TESTS_SERVE_MARKS_OF_CALLS_H

/* clang-format off */
#define MARKS_OF_CALLS \
    "<|python_tag|>", \
    "<|channel|>commentary to=functions.", \
    "<|channel|>final<|message|>", \
    " <|constrain|>json<|message|>", \
    "<|channel|>commentary<|message|>", \
    "<|end|><|start|>assistant", \
    "<tool_call>add\n", \
    "<arg_key>a</arg_key>\n<arg_value>", \
    "</arg_value>\n", \
    "<seed:tool_call>\n", \
    "\n</seed:tool_call>", \
    "<minimax:tool_call>\n", \
    "<invoke name=\"now\">\n", \
    "<parameter name=\"a\">", \
    "</invoke>\n", \
    "\n</minimax:tool_call>", \
    "<|tool_call|>[", \
    "functools[", \
    "<tool_calls>[", \
    "]</tool_calls>", \
    "<\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "calls\xe2\x96\x81" \
    "begin\xef\xbd\x9c>", \
    "<\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "call\xe2\x96\x81" \
    "begin\xef\xbd\x9c>now", \
    "function<\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "sep\xef\xbd\x9c>", \
    "<\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "sep\xef\xbd\x9c>", \
    "<\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "call\xe2\x96\x81" \
    "end\xef\xbd\x9c><\xef\xbd\x9c" \
    "tool\xe2\x96\x81" \
    "calls\xe2\x96\x81" \
    "end\xef\xbd\x9c>", \
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>", \
    "<|tool_call_end|>", \
    "<|tool_calls_section_end|>", \
    "[add(a=", \
    "[now()]", \
    ")]", \
    "add(a=", \
    "now()", \
    "<|python_start|>[", \
    "<|python_end|>", \
    "<function_calls>\n", \
    "\n</function_calls>"
/* clang-format on */

#endif
