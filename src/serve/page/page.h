/* page.h: the server's web page, one HTML file inside the program.
 *
 * Invariant: the file refers to nothing outside itself. It connects only to its own server and to the listed peers,
 * which get no keys; its policy enforces this in the browser. */
#ifndef IV_SERVE_PAGE_PAGE_H
#define IV_SERVE_PAGE_PAGE_H

#include "serve/http/http.h"

extern const char iv_page[]; /* UTF-8, NUL-terminated */
extern const size_t iv_page_bytes;

enum { IV_PAGE_PEERS_MAX = 16, IV_PAGE_PEERS_BYTES_MAX = 1500, IV_PAGE_POLICY_MAX = 2048 };

/* Peers are origins, http://HOST[:PORT] or https, separated by commas; NULL or "": none. Returns the next one of
 * *list and advances it; 0 bytes: no more. */
size_t iv_page_next_peer(const char **list, const char **origin);
/* Checks that the list can be part of a policy: only origins, and not too many. */
iv_status iv_page_check_peers(const char *peers, iv_error *err);

/* The page's Content-Security-Policy: its one script and one style by their SHA-256, connections to its own server
 * and these peers, nothing else. */
iv_status iv_page_policy(const char *peers, char out[IV_PAGE_POLICY_MAX], iv_error *err);

/* Handles GET /. */
void iv_page_handle(void *user, iv_http_request *q);

#endif
