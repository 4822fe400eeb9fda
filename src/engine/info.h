/* info.h: the identity of an engine (fingerprint, and the digests that it is made of), and dtype names. */
#ifndef IV_ENGINE_INFO_H
#define IV_ENGINE_INFO_H

#include "engine/state.h"

/* The fingerprint covers everything that may change a bit, and nothing else. A baseline's begins with its own name. */
iv_status iv_fingerprint_make(const iv_engine *e, char out[IV_FINGERPRINT_BYTES], iv_error *err);
/* Fills e->identity: the digest of each input, to tell which part of two fingerprints differs. */
iv_status iv_identity_make(iv_engine *e, iv_error *err);

#endif
