/* use_invar.c: a minimal program that uses the installed library. */
#include <invar_train.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    const char *name = iv_status_name(IV_LIMIT);
    printf("IV_LIMIT is called \"%s\"\n", name);
    iv_engine_options o;
    iv_engine *engine;
    iv_error err;
    iv_engine_options_init(&o);
    o.model = "no/such/model";
    iv_status status = iv_engine_open(&o, &engine, &err);
    printf("%s: %s\n", iv_status_name(status), err.message);
    iv_trainer_options t;
    iv_trainer *trainer;
    iv_trainer_options_init(&t);
    t.model = o.model;
    iv_status learner = iv_trainer_open(&t, &trainer, &err);
    printf("%s: %s\n", iv_status_name(learner), err.message);
    return strcmp(name, "limit") == 0 && o.size == sizeof o && t.size == sizeof t && status == IV_NOT_FOUND &&
                   learner == IV_NOT_FOUND
               ? 0
               : 1;
}
