/* receipt_match.c: is an engine the maker of a receipt? Every part of the fingerprint is compared by itself, so that
 * the answer says what differs. */
#include "engine/receipt.h"

#include <stdio.h>
#include <string.h>

enum { DIGEST_SHOWN = 16 };

/* Adds "name THEIRS, here OURS" to the list unless they are equal. Of a digest its beginning is enough. */
static bool note(iv_buf *list, const char *name, const char *theirs, const char *ours) {
    if (strcmp(theirs, ours) == 0) return true;
    int shown = strlen(theirs) == 64 || strlen(ours) == 64 ? DIGEST_SHOWN : IV_RECEIPT_WORD_BYTES_MAX;
    return iv_buf_printf(list, "%s%s %.*s, here %.*s", list->len ? "; " : "", name, shown, *theirs ? theirs : "none",
                         shown, *ours ? ours : "none");
}

iv_status iv_receipt_match(const iv_receipt *r, const iv_engine *e, iv_error *err) {
    iv_engine_info ours;
    iv_engine_get_info(e, &ours);
    const iv_engine_info *theirs = &r->info.maker;
    char version[2][16], ranks[2][24];
    snprintf(version[0], sizeof version[0], "%d", theirs->numerics_version);
    snprintf(version[1], sizeof version[1], "%d", ours.numerics_version);
    snprintf(ranks[0], sizeof ranks[0], "%zu", theirs->tensor_parallel_size);
    snprintf(ranks[1], sizeof ranks[1], "%zu", ours.tensor_parallel_size);
    iv_buf list = {0};
    bool ok = note(&list, "model type", theirs->model_type, ours.model_type) &&
              note(&list, "configuration", theirs->configuration_digest, ours.configuration_digest) &&
              note(&list, "weights", theirs->weights_digest, ours.weights_digest);
    bool other_model = list.len > 0;
    ok = ok && note(&list, "tokenizer", theirs->tokenizer_digest, ours.tokenizer_digest) &&
         note(&list, "chat template", theirs->template_digest, ours.template_digest) &&
         note(&list, "numerics version", version[0], version[1]) &&
         note(&list, "numerics", theirs->numerics, ours.numerics) &&
         note(&list, "arithmetic", theirs->arithmetic, ours.arithmetic) &&
         note(&list, "dtype", theirs->dtype, ours.dtype);
    /* The baselines' bits depend on the number of ranks; invar's do not. */
    if (strcmp(ours.numerics, "invar") != 0) ok = ok && note(&list, "ranks", ranks[0], ranks[1]);
    if (ok && list.len == 0) ok = note(&list, "fingerprint", theirs->fingerprint, ours.fingerprint);
    iv_status status = IV_OK;
    if (!ok)
        status = iv_fail(err, IV_NO_MEMORY, "receipt: no memory to compare it");
    else if (other_model)
        status = iv_fail(err, IV_INVALID, "a receipt from another model: %s", list.data);
    else if (list.len)
        status = iv_fail(err, IV_INVALID, "the fingerprints differ: %s", list.data);
    iv_buf_free(&list);
    return status;
}
