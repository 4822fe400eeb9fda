/* static_streams.c: the standard streams at addresses inside the library. cmake/python.cmake links it with
 * --wrap=stdin,--wrap=stdout,--wrap=stderr. */
#include <stdio.h>

extern FILE *__real_stdin, *__real_stdout, *__real_stderr;
FILE *__wrap_stdin, *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor(101))) static void set_streams(void) {
    __wrap_stdin = __real_stdin;
    __wrap_stdout = __real_stdout;
    __wrap_stderr = __real_stderr;
}
