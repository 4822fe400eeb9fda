/* receipt.h: writing the receipt of a finished request; invar.h has the calls that read and compare receipts. */
#ifndef IV_ENGINE_RECEIPT_H
#define IV_ENGINE_RECEIPT_H

#include "engine/state.h"

/* The receipt of a sequence whose last event is `done`, for free(); NULL when memory is out. */
char *iv_receipt_write(const iv_engine *e, const iv_sequence *s, const iv_event *done);

#endif
