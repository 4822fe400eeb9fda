/* page.h: the web page of the server, as one HTML file inside the program.
 *
 * Invariant: the file names nothing outside itself, and talks to the server that it came from only; its policy says so
 * to the browser. */
#ifndef IV_SERVE_PAGE_PAGE_H
#define IV_SERVE_PAGE_PAGE_H

#include "serve/http.h"

extern const char iv_page[]; /* UTF-8, NUL-terminated */
extern const size_t iv_page_bytes;

enum { IV_PAGE_POLICY_MAX = 512 };

/* The value of Content-Security-Policy that the page needs: its one script and its one style by their SHA-256,
 * connections to where it came from, nothing else. */
iv_status iv_page_policy(char out[IV_PAGE_POLICY_MAX], iv_error *err);

/* The route: GET /. */
void iv_page_handle(void *user, iv_exchange *x);

#endif
