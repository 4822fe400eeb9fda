/* exported.h: an export is the checkpoint that it was made from, in the same form. */
#ifndef IV_TESTS_ENGINE_EXPORTED_H
#define IV_TESTS_ENGINE_EXPORTED_H

#include "client.h"
#include "format/checkpoint.h"
#include "format/scratch.h"
#include "invar_model.h"

/* Towers too. */
static void export_has_the_same_form(const char *dir) {
    scratch s;
    iv_export_info info;
    iv_export_options o;
    iv_checkpoint *a, *b;
    uint8_t x[32], y[32];
    iv_error err;
    scratch_open(&s);
    iv_export_options_init(&o);
    ASSERT_OK(iv_export(dir, s.dir, &o, &info, &err), &err);
    ASSERT_OK(iv_checkpoint_open(dir, &a, &err), &err);
    ASSERT_OK(iv_checkpoint_open(s.dir, &b, &err), &err);
    ASSERT_OK(iv_checkpoint_digest(a, NULL, NULL, x, &err), &err);
    ASSERT_OK(iv_checkpoint_digest(b, NULL, NULL, y, &err), &err);
    assert_memory_equal(x, y, sizeof x);
    iv_checkpoint_close(a), iv_checkpoint_close(b);
    scratch_close(&s);
}

#endif
