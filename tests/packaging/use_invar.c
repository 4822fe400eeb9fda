/* use_invar.c: the smallest user of the installed library. */
#include <invar.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    const char *name = iv_status_name(IV_LIMIT);
    printf("IV_LIMIT is called \"%s\"\n", name);
    return strcmp(name, "limit") == 0 ? 0 : 1;
}
