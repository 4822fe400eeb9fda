/* page.h: the web page of the server, as one HTML file inside the program.
 *
 * Invariant: the file names nothing outside itself, and talks to the server that it came from and to the peers that
 * this names, which get no keys; its policy says so to the browser. */
#ifndef IV_SERVE_PAGE_PAGE_H
#define IV_SERVE_PAGE_PAGE_H

#include "serve/http.h"

extern const char iv_page[]; /* UTF-8, NUL-terminated */
extern const size_t iv_page_bytes;

enum { IV_PAGE_PEERS_MAX = 16, IV_PAGE_PEERS_BYTES_MAX = 1500, IV_PAGE_POLICY_MAX = 2048 };

/* Peers are origins, http://HOST[:PORT] or https, with commas between them; NULL or "": none. The next one from *list,
 * which moves on; 0 bytes: no more. */
size_t iv_page_next_peer(const char **list, const char **origin);
/* Whether the list can stand in a policy as it is: nothing but origins, and not too many. */
iv_status iv_page_check_peers(const char *peers, iv_error *err);

/* The value of Content-Security-Policy that the page needs: its one script and its one style by their SHA-256,
 * connections to where it came from and to these peers, nothing else. */
iv_status iv_page_policy(const char *peers, char out[IV_PAGE_POLICY_MAX], iv_error *err);

/* The route: GET /. */
void iv_page_handle(void *user, iv_http_request *q);

#endif
