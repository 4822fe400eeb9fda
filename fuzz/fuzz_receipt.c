/* fuzz_receipt.c: any receipt either fails with a message or is in range. Input: one line of JSON. */
#include "base/status.h"
#include "invar.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    iv_receipt *r = NULL;
    iv_error err = {0};
    iv_receipt_info i;
    iv_request q;
    iv_status status = iv_receipt_read("fuzz", (const char *)data, size, &r, &err);
    if (status != IV_OK) {
        IV_ASSERT(err.status == status && err.message[0]);
        return 0;
    }
    iv_receipt_get_info(r, &i);
    iv_receipt_get_request(r, &q);
    IV_ASSERT(q.ids && q.id_count > 0 && !q.text && q.has_seed && q.max_tokens > 0);
    for (size_t k = 0; k < q.id_count; k++) IV_ASSERT(q.ids[k] >= 0);
    IV_ASSERT(q.temperature >= 0 && q.temperature <= 100 && q.top_p >= 0 && q.top_p <= 1 && q.top_k >= 0);
    IV_ASSERT(q.logprobs >= -1 && q.logprobs <= 20 && q.stop_count <= 16);
    for (size_t k = 0; k < q.stop_count; k++) IV_ASSERT(q.stop[k][0]);
    for (size_t k = 0; k < q.stop_id_count; k++) IV_ASSERT(q.stop_ids[k] >= 0);
    IV_ASSERT(q.show_id_count <= 8);
    for (size_t k = 0; k < q.show_id_count; k++) IV_ASSERT(q.show_ids[k] >= 0);
    for (size_t k = 0; k < q.logit_bias_count; k++) IV_ASSERT(fabsf(q.logit_bias[k].bias) <= 100);
    IV_ASSERT(i.id_count <= q.max_tokens && i.finish != IV_FINISH_NONE && i.digest[0] && i.maker.fingerprint[0]);
    for (size_t k = 0; k < i.id_count; k++) IV_ASSERT(i.ids[k] >= 0 && i.logprobs[k] <= 0);
    iv_receipt_close(r);
    return 0;
}
