/* template_folder.h: a folder with tiny-math's tokenizer and the chat template under test, and its text model. The test
 * links or writes the other files. */
#ifndef IV_TESTS_SERVE_TEMPLATE_FOLDER_H
#define IV_TESTS_SERVE_TEMPLATE_FOLDER_H

#include "support.h"
#include "invar.h"

#include <stdlib.h>

static char folder[] = "/tmp/invar_template_XXXXXX";
static iv_text_model *text_model;

static inline int remove_folder(void **state) {
    (void)state;
    char command[64];
    iv_text_model_close(text_model);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static inline void use_template(const char *text) {
    char path[256];
    iv_error err;
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    iv_text_model_close(text_model);
    text_model = NULL;
    ASSERT_OK(iv_text_model_open(folder, &text_model, &err), &err);
}

#endif
